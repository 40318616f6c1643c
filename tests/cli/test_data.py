"""`prefixprop tasks`, `methods`, `cache` and `build-elife`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import call
from prefixprop.data import TASKS, elife, load_task
from prefixprop.data.cache import entries, stored

from tiny_articles import write_article


def test_lists_every_task() -> None:
    printed = call("tasks", columns=400)[0]
    for source in TASKS.values():
        row = next(line for line in printed.splitlines() if f" {source.name} " in line)
        for cell in (source.summary, source.origin, source.metric):
            assert cell in row
    assert "--data-dir" in printed and ".parquet" in printed


def test_shows_and_clears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXPROP_CACHE", str(tmp_path / "cache"))
    assert call("cache")[0] == f"{tmp_path / 'cache'}: 0 entries, 0.0 MB\n"
    stored("tokens", "key", lambda writer: writer.append("zeros", np.zeros(2_500_000, dtype=np.uint8)))
    shown = call("cache")[0]
    assert entries()[0].path.name in shown and f"{tmp_path / 'cache'}: 1 entry, 2.5 MB\n" in shown
    assert call("cache", "--clear")[0].endswith("1 entry, 2.5 MB removed\n")
    assert entries() == []


def test_files_of_the_splits_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": [3, 1, 2], "dev": [4, 5], "test": [6]}
    monkeypatch.setattr(elife, "split_numbers", lambda: splits)
    for number in (1, 3, 4, 5, 6, 7):
        subject = ("Ecology", "Neuroscience")[number % 4 == 1]
        write_article(tmp_path / "clone", number, f"<p>{number} {'word ' * 4000}</p>", subjects=[subject])
    shown = call("build-elife", tmp_path / "clone", tmp_path / "data")[0]
    for split, count in {"train": "2 of 3", "dev": "2 of 2", "test": "1 of 1"}.items():
        assert f"{split}.jsonl.xz: {count} articles." in shown
    task = load_task("elife", tmp_path / "data")
    assert [document.id for document in task.train] == ["elife-00003", "elife-00001"]
    assert task.test[0].text.startswith("6 word") and task.label_names == ("Ecology", "Neuroscience")


def test_a_wrong_folder_is_answered_in_a_sentence(tmp_path: Path) -> None:
    told = call("build-elife", tmp_path, tmp_path / "data", status=1)[1]
    assert re.search(r"no articles of eLife here .* `git clone", told)
    assert not (tmp_path / "data").exists()


def test_lists_methods_options_kernels_and_models() -> None:
    shown = call("methods")[0]
    for word in ("PrefixPropagationConfig", "PREFIX_PROPAGATION", "PrefixTuningConfig", "num_virtual_tokens"):
        assert word in shown
    for word in ("exp", "kernel_length_scale", "kernel_degree", "linear", "longformer", "xlm-roberta"):
        assert word in shown
    assert "token_dim" not in shown  # what peft and we record is no option


@pytest.mark.parametrize(("content", "cause"), [(None, "ModuleNotFoundError"), ("1 / 0", "ZeroDivisionError")])
def test_modules_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, cause: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if content is not None:
        Path("broken_module.py").write_text(content)
    told = call("--import", "broken_module", "methods", status=2)[1]
    assert "cannot be imported" in told and cause in told

"""Runs whose parts are not all of one run are refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from prefixprop import load_run
from prefixprop.train import RunDirectory, train

from tiny_training import tiny_settings

METHODS = ("prefix-propagation", "fine-tuning", "head-only")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of every kind of weights, named by its method, and one with another seed."""
    folder = tmp_path_factory.mktemp("runs")
    settings = tiny_settings(folder, "roberta", epochs=1)
    for method in METHODS:
        train(replace(settings, method=method), folder / method, tell=lambda note: None)
    train(replace(settings, seed=2), folder / "other", tell=lambda note: None)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained / "prefix-propagation", tmp_path / "run")


def change_settings(run: Path, **changes: object) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config.keys() >= changes.keys()
    (run / "config.yaml").write_text(yaml.safe_dump(config | changes))


@pytest.mark.parametrize("method", METHODS)
def test_the_manifest_has_all_that_predicts(method: str, trained: Path) -> None:
    run = trained / method
    load_run(run)
    listed = set(json.loads((run / "manifest.json").read_text()))
    weights = {"prefix-propagation": "adapter/adapter_model.safetensors", "fine-tuning": "model/model.safetensors"}
    assert listed >= {"config.yaml (settings)", "labels.json", "tokenizer/tokenizer.json"}
    assert weights.get(method, "head/head.safetensors") in listed


def test_what_may_change(run: Path, trained: Path) -> None:
    base = shutil.copytree(trained / "roberta", run.parent / "moved")
    change_settings(run, model=str(base), train_files=["elsewhere.jsonl"], precision="fp32")
    (run / "adapter" / "README.md").write_text("My best adapter.")
    load_run(run)


def test_a_run_without_weights_has_none_in_its_manifest(tmp_path: Path) -> None:
    train(tiny_settings(tmp_path, "roberta", method="head-only", epochs=1, keep_weights=False), tmp_path / "run")
    listed = set(json.loads((tmp_path / "run" / "manifest.json").read_text()))
    assert listed == {"config.yaml (settings)", "labels.json"}
    RunDirectory(tmp_path / "run").check_parts()


def _take(part: str, name: str) -> Callable[[Path, Path], None]:
    def take(run: Path, trained: Path) -> None:
        assert (run / part).read_bytes() != (trained / name / part).read_bytes()
        shutil.copyfile(trained / name / part, run / part)

    return take


def _swap_labels(run: Path, trained: Path) -> None:
    names = json.loads((run / "labels.json").read_text())
    (run / "labels.json").write_text(json.dumps(names[::-1]))


FAULTS: dict[str, Callable[[Path, Path], None]] = {
    "adapter/adapter_model.safetensors is truncated or changed": _take("adapter/adapter_model.safetensors", "other"),
    "labels.json is truncated or changed": _swap_labels,
    "tokenizer/tokenizer_config.json is missing": lambda run, _: os.remove(run / "tokenizer/tokenizer_config.json"),
    "tokenizer/added.json is not in manifest.json": lambda run, _: (run / "tokenizer/added.json").touch(),
    r"config.yaml \(settings\) is truncated or changed": lambda run, _: change_settings(run, max_length=64),
    "manifest.json is damaged": lambda run, _: os.truncate(run / "manifest.json", 100),
}


@pytest.mark.parametrize("message", FAULTS)
def test_parts_that_do_not_belong_together(message: str, run: Path, trained: Path) -> None:
    FAULTS[message](run, trained)
    with pytest.raises(ValueError, match=rf"run: {message}, so the parts .* restore .* --overwrite`\.$"):
        load_run(run)

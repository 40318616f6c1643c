"""`prefixprop build-elife`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixprop.cli.app import app
from prefixprop.data import elife, load_elife

from tiny_articles import write_article


def test_files_of_the_splits_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": [3, 1, 2], "dev": [4, 5], "test": [6]}
    monkeypatch.setattr(elife, "split_numbers", lambda: splits)
    for number in (1, 3, 4, 5, 6, 7):
        subject = ("Ecology", "Neuroscience")[number % 4 == 1]
        write_article(tmp_path / "clone", number, f"<p>{number} {'word ' * 4000}</p>", subjects=[subject])
    result = CliRunner().invoke(app, ["build-elife", str(tmp_path / "clone"), str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    for split, count in {"train": "2 of 3", "dev": "2 of 2", "test": "1 of 1"}.items():
        assert f"{split}.jsonl.xz: {count} articles." in result.stdout
    task = load_elife(tmp_path / "data")
    assert [document.id for document in task.train] == ["elife-00003", "elife-00001"]
    assert task.test[0].text.startswith("6 word") and task.label_names == ("Ecology", "Neuroscience")


def test_a_wrong_folder_is_answered_in_a_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["build-elife", str(tmp_path), str(tmp_path / "data")])
    assert result.exit_code == 1 and "no articles of eLife here" in result.stderr
    assert not (tmp_path / "data").exists()

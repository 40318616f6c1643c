"""The linear model that a run is compared with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixprop.data import ClassificationTask
from prefixprop.evaluate import measure_floor
from prefixprop.settings.documents import load_run_task
from prefixprop.train import RunSettings, train

from tiny_training import tiny_settings


def floor_of(settings: RunSettings) -> dict[str, Any]:
    task = load_run_task(settings)
    assert isinstance(task, ClassificationTask)
    return measure_floor(task)


@pytest.mark.parametrize(
    "changes", [{}, {"max_train_documents": 12, "max_dev_documents": 6}, {"folds": 3, "fold": 1}], ids=str
)
def test_the_floor_is_that_of_the_documents_of_the_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = tiny_settings(tmp_path, epochs=1, **changes)
    metrics = train(settings, tmp_path / "run").metrics
    assert metrics["floor"] == floor_of(settings)
    measured = {name for name in metrics["floor"] if name != "model"}
    assert measured == {name for name in ("dev", "test") if name in metrics}
    for split in measured:
        assert metrics["floor"][split]["documents"] == metrics[split]["documents"]
    card = (tmp_path / "run" / "README.md").read_text()
    assert (
        f"linear SVM, fitted on the same documents, reaches micro_f1 {metrics['floor']['dev']['micro_f1']:.4f}"
        in card
    )


def test_the_floor_reads_whole_documents(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, epochs=1)
    whole = train(settings, tmp_path / "whole").metrics
    cut = train(replace(settings, max_length=8), tmp_path / "cut", tell=lambda note: None).metrics
    assert cut["floor"] == whole["floor"] and cut["dev"] != whole["dev"]


def test_without_a_floor_and_back_the_run_is_the_same(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1, floor=False), tmp_path / "run"
    first = train(settings, run_dir).metrics
    assert "floor" not in first and "Floor" not in (run_dir / "README.md").read_text()
    assert train(replace(settings, floor=True), run_dir, resume=True).metrics == first


def test_documents_without_words_have_no_floor(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, epochs=1)
    train_file = Path(settings.train_files[0])
    rows = [json.loads(line) | {"text": "?"} for line in train_file.read_text().splitlines()]
    train_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    metrics = train(settings, tmp_path / "run", tell=notes.append).metrics
    assert "floor" not in metrics and metrics["status"] == "finished"
    assert any(note.startswith("the run is not compared with a linear model") for note in notes)

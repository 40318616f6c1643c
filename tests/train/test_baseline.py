"""The TF-IDF baseline that a run is compared with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixprop.data import ClassificationTask
from prefixprop.evaluate import measure_baseline
from prefixprop.train import train

from tiny_training import Notes, load_run_task, tiny_settings


@pytest.mark.parametrize(
    "changes",
    [
        {"max_length": 8},  # the baseline reads whole documents
        {"max_train_documents": 12, "max_dev_documents": 6},
        {"folds": 3, "fold": 1},
    ],
    ids=str,
)
def test_the_baseline_is_that_of_the_documents_of_the_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = tiny_settings(tmp_path, epochs=1, **changes)
    metrics = train(settings, tmp_path / "run", progress=Notes()).metrics
    task = load_run_task(settings)
    assert isinstance(task, ClassificationTask) and metrics["baseline"] == measure_baseline(task)
    measured = {name for name in metrics["baseline"] if name != "model"}
    assert measured == {name for name in ("dev", "test") if name in metrics}
    for split in measured:
        assert metrics["baseline"][split]["documents"] == metrics[split]["documents"]
    card = (tmp_path / "run" / "README.md").read_text()
    assert (
        f"linear SVM, fitted on the same documents, has micro_f1 {metrics['baseline']['dev']['micro_f1']:.4f}" in card
    )


def test_without_a_baseline_and_back_the_run_is_the_same(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1, baseline=False), tmp_path / "run"
    first = train(settings, run_dir).metrics
    assert "baseline" not in first and "Baseline" not in (run_dir / "README.md").read_text()
    assert train(replace(settings, baseline=True), run_dir, resume=True).metrics == first


def test_documents_without_words_have_no_baseline(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, epochs=1)
    train_file = Path(settings.train_files[0])
    rows = [json.loads(line) | {"text": "?"} for line in train_file.read_text().splitlines()]
    train_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    metrics = train(settings, tmp_path / "run", progress=Notes(notes)).metrics
    assert "baseline" not in metrics and metrics["status"] == "finished"
    assert any(note.startswith("there is no TF-IDF baseline") for note in notes)

"""Runs that are judged on a left-out fold of the training set, and an early end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefixprop.evaluate import read_predictions
from prefixprop.predict import PredictionOptions, load_run
from prefixprop.predict.run_data import predict_split
from prefixprop.train import RunSettings, plan, train

from tiny_training import history, load_run_task, save_tiny_model, tiny_settings, write_questions


def left_out(settings: RunSettings) -> list[str]:
    return [item.id for item in load_run_task(settings).dev]


def test_the_fold_takes_the_place_of_dev_and_there_is_no_test(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1, folds=5, fold=1), tmp_path / "run"
    metrics = train(settings, run_dir).metrics
    assert metrics["dev"]["documents"] == 5 and "test" not in metrics and "test_calibrated" not in metrics
    assert not (run_dir / "predictions" / "test.jsonl").exists()
    stored = read_predictions(run_dir / "predictions" / "dev.jsonl")
    assert list(stored.ids) == left_out(settings) and all(name.startswith("train-") for name in stored.ids)
    assert len(json.loads((run_dir / "lengths.json").read_text())) == 24 - 5
    assert "the dev set is fold 1 of 5 of the training set" in (run_dir / "README.md").read_text()
    # The fold is found again by `prefixprop evaluate`, and test stays unseen there too.
    trained = load_run(run_dir)
    assert predict_split(trained, "dev", PredictionOptions())[0].ids == stored.ids
    with pytest.raises(
        ValueError, match=r"on fold 1 of 5 of the training set.* without the test set; try --split dev"
    ):
        predict_split(trained, "test", PredictionOptions())


def test_all_runs_share_the_folds(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, folds=4, fold=2)
    others = [replace(settings, seed=2), replace(settings, method="lora", learning_rate=1.0)]
    assert all(left_out(other) == left_out(settings) for other in others)
    folds = [left_out(replace(settings, fold=fold)) for fold in range(4)]
    assert sorted(name for fold in folds for name in fold) == sorted(f"train-{number}" for number in range(24))


def test_documents_are_drawn_from_what_a_fold_leaves(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, folds=3, fold=0)
    whole, cut = load_run_task(settings), load_run_task(replace(settings, max_train_documents=12))
    assert (len(whole.train), len(cut.train), len(cut.dev), len(cut.test)) == (16, 12, 8, 0)
    assert {item.id for item in cut.train} < {item.id for item in whole.train}
    assert [item.id for item in cut.dev] == [item.id for item in whole.dev]
    assert len(load_run_task(replace(settings, max_dev_documents=2)).dev) == 2


def test_folds_of_questions(tmp_path: Path) -> None:
    settings = RunSettings(
        task="wikihop",
        data_dir=str(write_questions(tmp_path / "wikihop")),
        model=str(save_tiny_model(tmp_path / "model")),
        max_length=80,
        folds=3,
        fold=2,
    )
    data = plan(settings).data
    assert len(data.train_lengths) == 8 and {name: len(split) for name, split in data.evaluated.items()} == {"dev": 4}


def test_rare_labels_are_a_note(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, folds=6, fold=0)
    with Path(settings.train_files[0]).open("a") as file:
        file.write('{"id": "rare", "text": "w5", "label": "tax"}\n')
    assert any("fewer than 6 training documents have the label tax" in note for note in plan(settings).data.notes)


def test_an_early_end_is_the_last(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    settings = tiny_settings(tmp_path, epochs=9, keep="last", early_stopping=2)
    metrics = train(settings, run_dir).metrics
    lines = history(run_dir)
    assert len(lines) == metrics["epochs"] == metrics["best_epoch"] + 2 < 9
    assert lines[-1]["dev_nll"] == pytest.approx(metrics["dev"]["nll"], abs=1e-6)

"""Runs on documents with several labels, and on skewed classes: trained, predicted and evaluated again."""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from prefixprop import load_run
from prefixprop.data import load_files
from prefixprop.evaluate import label_table, read_predictions
from prefixprop.predict.outputs import CommaSeparated, JsonLines
from prefixprop.predict.run_data import predict_split
from prefixprop.predict.trained_model import PredictionOptions
from prefixprop.runs.archive import archive_runs, read_archive
from prefixprop.runs.directory import RunDirectory
from prefixprop.runs.find import read_run
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train import readers, train, train_label_columns

from tiny_questions import WORDS, sentence
from tiny_training import Notes, history, rewrite, tiny_settings

LABELS = {"law firm": WORDS[0], "7": WORDS[1], "art": WORDS[2]}
NAMES = ("7", "art", "law firm")


def write_sets(path: Path, count: int, seed: int) -> Path:
    """Documents with any of three labels, each told by a word."""
    generator = random.Random(seed)
    rows = []
    for number in range(count):
        labels = [label for label in LABELS if generator.random() < 0.4]
        words = [*sentence(generator, 8).split(), *(LABELS[label] for label in labels for _ in range(3))]
        generator.shuffle(words)
        rows.append({"id": f"{path.stem}-{number}", "text": " ".join(words), "label": labels, "tags": labels[:1]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def settings_of(folder: Path, **changes: Any) -> RunSettings:
    for split, count, seed in (("train", 40, 1), ("dev", 15, 2), ("test", 12, 3)):
        write_sets(folder / f"{split}.jsonl", count, seed)
    return tiny_settings(folder, **{"epochs": 2} | changes)


OF_MIXES: dict[str, Any] = {"num_virtual_tokens": None, "learning_rate": None}


@pytest.fixture(autouse=True)
def _two_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = readers.BankPlan(1, (1e-2, 1e-3), 1)
    monkeypatch.setattr(readers, "plan_bank", lambda tokens, groups, length, rate: plan)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("readers", OF_MIXES | {"dev_files": ()}),
        ("readers", OF_MIXES | {"class_weights": "balanced", "mix_baseline": "no"}),
        ("tfidf", OF_MIXES | {"dev_files": (), "batch_size": None, "class_weights": "none"}),
        ("prefix-propagation", {"class_weights": "balanced"}),
        ("fine-tuning", {"num_virtual_tokens": None, "choose_by": "macro_f1"}),
    ],
)
def test_a_run_of_every_kind(tmp_path: Path, method: str, changes: dict[str, Any]) -> None:
    settings = settings_of(tmp_path, method=method, **changes)
    if method == "tfidf":
        settings = replace(settings, epochs=None)
    metrics = train(settings, tmp_path / "run", progress=Notes()).metrics
    directory = RunDirectory(tmp_path / "run")
    assert directory.read_labels() == NAMES and len(directory.read_thresholds() or ()) == 3
    assert directory.read_settings().choose_by == (settings.choose_by or "average_precision")
    assert metrics["baseline"]["dev"]["average_precision"] > 0.8 and 0 < metrics["dev"]["average_precision"] <= 1
    if settings.is_mix:
        expected = metrics["expected_average_precision"]
        assert expected["low"] <= expected["average_precision"] <= expected["high"]
        assert expected["average_precision"] == pytest.approx(metrics["dev"]["average_precision"])
    # Everything can be computed again from the stored predictions.
    stored = {split: read_predictions(directory.predictions(split)) for split in ("dev", "test")}
    assert {split: found.evaluate() for split, found in stored.items()} == {name: metrics[name] for name in stored}
    assert [row.label for row in label_table(stored["dev"])] == list(NAMES)
    # What is loaded says what the run said of the test set, and gives the same labels.
    run = load_run(tmp_path / "run")
    found = run.predict([document.text for document in load_files(settings.test_files).train])
    calibrated = stored["test"].with_temperature(run.temperature)
    probabilities = np.array([list(one.probabilities.values()) for one in found])
    np.testing.assert_allclose(probabilities, calibrated.probabilities, atol=1e-4)
    decisions = [[name in (one.labels or ()) for name in NAMES] for one in found]
    sure = np.abs(probabilities - run.thresholds) > 1e-3
    assert ((np.array(decisions) == stored["test"].decisions) | ~sure).all()
    assert all(one.label in NAMES and one.confidence == max(one.probabilities.values()) for one in found)
    before, after = predict_split(run, "test", PredictionOptions())
    assert after.evaluate()["average_precision"] == pytest.approx(metrics["test"]["average_precision"], abs=1e-4)
    assert before.several_labels
    # Chunks are averaged as probabilities of each label.
    whole = run.predict(["w5 w6 " * 40], long="chunk-average")[0]
    assert all(0 <= value <= 1 for value in whole.probabilities.values())
    # As lines of a file.
    names = {"run": run.label_names}
    line = JsonLines(names).line("d", found[:1])
    assert json.loads(line)["labels"] == list(found[0].labels or ())
    name, (parsed,) = JsonLines(names).parsed(line)
    assert name == "d" and parsed.probabilities == found[0].probabilities
    form = CommaSeparated(names, ["run"])
    (row,) = csv.DictReader(io.StringIO((form.header + form.line("d", found[:1])).decode()))
    assert row["labels"] == "; ".join(found[0].labels or ())
    # As a run of an archive.
    archive_runs([read_run(tmp_path / "run")], tmp_path / "archive")
    (archived,) = read_archive(tmp_path / "archive").values()
    np.testing.assert_array_equal(archived.predictions("dev").decisions, stored["dev"].decisions)
    if method == "fine-tuning":
        assert AutoConfig.from_pretrained(tmp_path / "run" / "model").problem_type == "multi_label_classification"


def test_a_resumed_run_keeps_what_its_documents_decided(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, method="readers", **OF_MIXES | {"dev_files": (), "epochs": 1})
    first = train(settings, tmp_path / "run", progress=Notes())
    assert train(settings, tmp_path / "run", resume=True, progress=Notes()).metrics == first.metrics


def test_several_label_columns_of_one_kind(tmp_path: Path) -> None:
    open_values = OF_MIXES | {"dev_files": (), "epochs": 1, "class_weights": "balanced"}
    settings = settings_of(tmp_path, method="readers", **open_values)
    results = train_label_columns(
        replace(settings, label_column=("label", "tags")), tmp_path / "both", progress=Notes()
    )
    assert all("thresholds" in result.metrics for result in results)
    rewrite(settings.train_files[0], lambda number, row: row | {"kind": "ab"[number % 2]})
    mixed = replace(settings, label_column=("label", "kind"), test_files=())
    with pytest.raises(ValueError, match="in some columns a document has one label, and in others several"):
        train_label_columns(mixed, tmp_path / "mixed", progress=Notes())


# --- skewed classes ---------------------------------------------------------------------------------------------


def skewed(folder: Path, **changes: Any) -> RunSettings:
    """One document in eight has the label art, and nothing tells it."""
    settings = tiny_settings(folder, epochs=8, learning_rate=3e-2, **changes)
    for files in (settings.train_files, settings.dev_files, settings.test_files):
        rewrite(files[0], lambda n, row: row | {"label": "law" if n % 8 else "art", "text": f"w{n % 3 + 3} w5"})
    return settings


def test_a_class_that_is_never_predicted_is_told(tmp_path: Path) -> None:
    notes: list[str] = []
    metrics = train(skewed(tmp_path), tmp_path / "run", progress=Notes(notes)).metrics
    assert metrics["never_predicted"] == ["art"]
    told = next(note for note in notes if "never predicted" in note)
    assert "although documents have it: art; --class-weights balanced or --choose-by macro_f1 may help" in told
    assert "**Never predicted on the dev set or held-out documents:** art." in RunDirectory(
        tmp_path / "run"
    ).model_card.read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["head-only", "readers"])
def test_class_weights_raise_the_rare_class(tmp_path: Path, method: str) -> None:
    of_method = {"mix_baseline": "no"} if method == "readers" else {"keep": "last"}
    changes: dict[str, Any] = {"num_virtual_tokens": None, **of_method}
    rare = {}
    for weights in ("none", "balanced"):
        settings = replace(skewed(tmp_path, method=method, **changes), class_weights=weights)
        train(settings, tmp_path / weights, progress=Notes())
        rare[weights] = (
            read_predictions(RunDirectory(tmp_path / weights).predictions("dev")).probabilities[:, 0].mean()
        )
    assert rare["balanced"] > rare["none"] + 0.05


def test_the_epoch_is_chosen_by_a_metric_of_documents_with_one_label(tmp_path: Path) -> None:
    metrics = train(tiny_settings(tmp_path, choose_by="macro_f1"), tmp_path / "run", progress=Notes()).metrics
    assert metrics["dev"]["macro_f1"] == max(line["dev_macro_f1"] for line in history(tmp_path / "run"))
    with pytest.raises(SettingsError, match="--choose-by: average_precision needs documents with several labels"):
        train(tiny_settings(tmp_path, choose_by="average_precision"), tmp_path / "other", progress=Notes())

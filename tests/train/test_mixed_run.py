"""Runs that mix models: chosen on held-out documents, killed and resumed, several label columns in one pass."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

from prefixprop import load_run
from prefixprop.data.splits import fold_numbers
from prefixprop.evaluate import read_predictions
from prefixprop.models.base_model import load_base_model
from prefixprop.predict.loading import load_runs
from prefixprop.predict.trained_model import PredictionOptions, predict_with_each
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings import resolve
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train import readers, train, train_label_columns
from prefixprop.train.bank_trainer import BankTrainer
from prefixprop.train.readers import Judged
from prefixprop.train.text_states import TextStates

from killed_runs import killed
from tiny_training import Notes, comparable, history, load_run_task, rewrite, tiny_settings


def mixed_settings(folder: Path, **changes: Any) -> RunSettings:
    """Readers on 24 documents without a dev set, in four steps of three epochs."""
    open_values: dict[str, Any] = {"dev_files": (), "num_virtual_tokens": None, "learning_rate": None}
    return tiny_settings(folder, **open_values | {"method": "readers", "batch_size": 6} | changes)


@pytest.fixture(autouse=True)
def _three_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny documents would get one learning rate."""
    plan = readers.BankPlan(2, (1e-2, 3e-2, 1e-3), 2)
    monkeypatch.setattr(readers, "plan_bank", lambda tokens, groups, length, rate: plan)


def texts_of(settings: RunSettings) -> list[str]:
    return [json.loads(line)["text"] for line in Path(settings.test_files[0]).read_text().splitlines()]


def assert_answers_again(settings: RunSettings, run: RunDirectory) -> None:
    """What is loaded says what the run said of the test set."""
    found = load_run(run.path).predict(texts_of(settings))
    probabilities = np.array([list(each.probabilities.values()) for each in found])
    np.testing.assert_allclose(probabilities, read_predictions(run.predictions("test")).probabilities, atol=1e-5)


def test_a_run_without_a_dev_set(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path)
    metrics = train(settings, tmp_path / "run", progress=Notes()).metrics
    run = RunDirectory(tmp_path / "run")
    answers = read_predictions(run.predictions("dev"))
    task = load_run_task(settings)
    assert list(answers.ids) == [document.id for document in task.train]  # every document, left out once
    assert (Judged.of(task).folds == fold_numbers("files", task.train, 5)).all()
    assert metrics["expected_accuracy"]["accuracy"] == metrics["dev"]["accuracy"] == answers.evaluate()["accuracy"]
    assert metrics["expected_accuracy"]["low"] <= metrics["dev"]["accuracy"] <= metrics["expected_accuracy"]["high"]
    assert metrics["judged_on"] == "5 folds" and metrics["temperature"] == 1.0
    assert {row["learning_rate"] for row in metrics["learning_rates"]} == {1e-2, 3e-2, 1e-3}
    assert metrics["mix"]["chosen"]["readers"] in {
        row["learning_rate"] for row in metrics["learning_rates"] if not row["dropped"]
    }
    assert len(history(run.path)) == 3 and not run.checkpoints.exists()
    assert metrics["baseline"]["dev"]["documents"] == metrics["readers"]["dev"]["documents"] == 24
    assert_answers_again(settings, run)


def test_states_of_the_text_are_kept_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill, kept = TextStates.fill, []

    def recorded(text: TextStates, progress: Progress) -> None:
        kept.append(text.kept_on is not None)
        fill(text, progress)

    monkeypatch.setattr(TextStates, "fill", recorded)
    found = []
    for keep in ("auto", "no"):
        kept.clear()
        metrics = train(
            mixed_settings(tmp_path, epochs=1, keep_states=keep), tmp_path / keep, progress=Notes()
        ).metrics
        assert kept and all(each == (keep == "auto") for each in kept)
        found.append(metrics["readers"]["test"]["nll"])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_many_documents_are_for_readers_also_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = mixed_settings(tmp_path, method=None)
    with monkeypatch.context() as patched:
        patched.setattr(resolve, "MANY_DOCUMENTS", 24)
        found = train(settings, tmp_path / "run", progress=Notes()).metrics
    assert RunDirectory(tmp_path / "run").read_settings().method == "readers" and "mix" in found
    # What the documents decided stays, whatever they would decide now.
    assert train(settings, tmp_path / "run", resume=True, progress=Notes()).metrics == found


def test_readers_are_ordinary_adapters(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path, mix_baseline="no", test_files=())
    train(settings, tmp_path / "run", progress=Notes())
    run = load_run(tmp_path / "run")
    assert run.words is None and run.mix is not None and run.mix.used == ("readers",)
    texts = texts_of(mixed_settings(tmp_path))
    inputs = run.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    base = load_base_model(settings.model, tokenizer=run.tokenizer)
    each = []
    for folder in sorted((tmp_path / "run" / "mix" / "readers").iterdir()):
        model = PeftModel.from_pretrained(base.classifier(run.label_names), folder).eval()
        with torch.no_grad():
            each.append(model(**inputs).logits.softmax(dim=-1))
    mixed = torch.stack(each).mean(dim=0).double() ** run.mix.weights["readers"]
    expected = mixed / mixed.sum(dim=1, keepdim=True)
    found = [list(prediction.probabilities.values()) for prediction in run.predict(texts)]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, atol=1e-5, rtol=0)


def test_a_dev_set_takes_the_place_of_folds(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path, dev_files=(str(tmp_path / "dev.jsonl"),))
    metrics = train(settings, tmp_path / "run", progress=Notes()).metrics
    assert metrics["judged_on"] == "dev" and metrics["dev"]["documents"] == 10
    assert metrics["expected_accuracy"]["documents"] == 10


def test_tfidf_is_a_method(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path, method="tfidf", epochs=None, batch_size=None)
    metrics = train(settings, tmp_path / "run", progress=Notes()).metrics
    assert metrics["dev"] == metrics["baseline"]["dev"] and "readers" not in metrics
    run = load_run(tmp_path / "run")
    assert run.model is None and not list((tmp_path / "run").rglob("adapter_*"))
    assert_answers_again(settings, RunDirectory(tmp_path / "run"))


@pytest.mark.parametrize("step", [3, 9])
def test_killed_and_resumed(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = mixed_settings(tmp_path, checkpoint_every=2)
    whole = train(settings, tmp_path / "whole", progress=Notes())
    original = BankTrainer.train

    def dies(self: BankTrainer, until: int) -> Any:
        for number in original(self, until):
            if number == step:
                os.kill(os.getpid(), signal.SIGKILL)
            yield number

    with monkeypatch.context() as patch:
        patch.setattr(BankTrainer, "train", dies)
        killed(lambda: train(settings, tmp_path / "run", progress=Notes()))
    assert not RunDirectory(tmp_path / "run").is_finished()
    resumed = train(settings, tmp_path / "run", resume=True, progress=Notes())
    assert comparable(resumed.metrics) == comparable(whole.metrics)
    for file in ("predictions/dev.jsonl", "predictions/test.jsonl", "mix/readers/1/adapter_model.safetensors"):
        if (whole.run_dir / file).exists():
            assert (resumed.run_dir / file).read_bytes() == (whole.run_dir / file).read_bytes(), file
    again = train(settings, tmp_path / "run", resume=True, progress=Notes())
    assert again.metrics == resumed.metrics


def test_several_label_columns_share_a_pass(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path, label_column=("label", "size"))
    for files in (settings.train_files, settings.test_files):
        rewrite(files[0], lambda number, row: row | {"size": ("long", "short", "middle")[number % 3]})
    notes: list[str] = []
    results = train_label_columns(settings, tmp_path / "both", progress=Notes(notes))
    assert [result.run_dir for result in results] == [tmp_path / "both" / "label", tmp_path / "both" / "size"]
    assert len(notes) == len(set(notes))
    runs = load_runs([result.run_dir for result in results])
    assert [run.label_names for run in runs] == [("art", "law"), ("long", "middle", "short")]
    used = [run for run in runs if run.model is not None]
    assert len({id(run.model) for run in used}) == min(1, len(used))
    texts = texts_of(settings)
    together = predict_with_each(runs, texts, PredictionOptions())
    for place, result in enumerate(results):
        alone = load_run(result.run_dir).predict(texts)
        for found, expected in zip(together, alone, strict=True):
            assert found[place].probabilities == pytest.approx(expected.probabilities, abs=1e-5)
    again = train_label_columns(settings, tmp_path / "both", resume=True, progress=Notes())
    assert [result.metrics for result in again] == [result.metrics for result in results]


def test_one_document_is_too_few_and_two_are_enough(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path, test_files=(), epochs=1)
    path = Path(settings.train_files[0])
    lines = path.read_text().splitlines()
    path.write_text(lines[0] + "\n")
    with pytest.raises(ValueError, match="at least two labels"):
        train(settings, tmp_path / "one", progress=Notes())
    path.write_text("\n".join(lines[:2]) + "\n")
    notes: list[str] = []
    metrics = train(settings, tmp_path / "two", progress=Notes(notes)).metrics
    assert metrics["dev"]["documents"] == 2 and any("there is no TF-IDF baseline" in note for note in notes)


def test_rare_labels_and_documents_that_are_all_alike(tmp_path: Path) -> None:
    settings = mixed_settings(tmp_path, test_files=(), epochs=1)
    rewrite(settings.train_files[0], lambda number, row: row if number else row | {"label": "rare"})
    metrics = train(settings, tmp_path / "rare", progress=Notes()).metrics
    assert metrics["dev"]["documents"] == 24
    rewrite(settings.train_files[0], lambda number, row: row | {"text": "the same words"})
    with pytest.raises(ValueError, match="text"):
        train(settings, tmp_path / "alike", progress=Notes())

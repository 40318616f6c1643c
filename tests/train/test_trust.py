"""Runs with a target precision: which answers they accept, from the run directory to the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from command_line import call
from prefixprop import load_run
from prefixprop.evaluate import read_predictions
from prefixprop.runs.directory import RunDirectory
from prefixprop.train import RunSettings, train

from tiny_training import Notes, tiny_settings, write_documents

TARGET = 0.3  # for which half of a dev set of 24 documents is set aside


def settings_with_dev(folder: Path, documents: int, **changes: Any) -> RunSettings:
    dev = write_documents(folder / f"dev{documents}.jsonl", documents, seed=5)
    open_values = {"num_virtual_tokens": None, "learning_rate": None} if changes["method"] == "readers" else {}
    values = {"dev_files": (str(dev),), "target_precision": TARGET, "epochs": 1, **open_values, **changes}
    return tiny_settings(folder, "roberta", **values)


@pytest.mark.parametrize("method", ["prefix-propagation", "readers"])
def test_a_large_dev_set_gives_a_guarantee(tmp_path: Path, method: str) -> None:
    notes = Notes()
    settings = settings_with_dev(tmp_path, 30, method=method)
    metrics = train(settings, tmp_path / "run", progress=notes).metrics
    assert "15 of 30 dev documents are set aside to find which answers to accept" in notes.notes
    run = RunDirectory(tmp_path / "run")
    dev, aside = (read_predictions(run.predictions(split)) for split in ("dev", "calibration"))
    assert not {*dev.ids} & {*aside.ids} and len(dev.ids) == len(aside.ids) == 15
    assert metrics["dev"]["documents"] == 15
    trust = metrics["trust"]
    assert (trust["kind"], trust["documents"], trust["test"]["documents"]) == ("guarantee", 15, 8)
    assert trust["accepted"] and trust["accuracy"] > TARGET
    confidence = aside.with_temperature(run.read_temperature()).probabilities.max(axis=1)
    assert trust["accepted"] == (confidence >= trust["threshold"]).sum()
    assert "**Trust:** Accept answers with a confidence of" in run.model_card.read_text()
    # The same answers are accepted of new documents, and everything says so.
    texts = [json.loads(line)["text"] for line in Path(settings.test_files[0]).read_text().splitlines()]
    found = load_run(run.path).predict(texts)
    assert [one.decision for one in found] == [
        "accept" if one.confidence >= trust["threshold"] else "review" for one in found
    ]
    assert [one.decision for one in found].count("accept") == trust["test"]["accepted"]
    out, told = call("predict", run.path, settings.test_files[0])
    assert [json.loads(line)["decision"] for line in out.splitlines()] == [one.decision for one in found]
    assert f"accept {trust['test']['accepted']}" in told
    call("predict", run.path, settings.test_files[0], "--output", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        assert [row["decision"] for row in csv.DictReader(file)] == [one.decision for one in found]
    out, _ = call("evaluate", run.path, "--json")
    assert json.loads(out)["accepted"] == {"target": TARGET, **trust["test"]}
    out, _ = call("evaluate", run.path)
    assert f"Accepted: {trust['test']['accepted']} of 8 documents" in out
    if method != "readers":
        out, _ = call("evaluate", run.path, "--split", "dev", "--json")
        assert json.loads(out)["after"]["documents"] == 15


@pytest.mark.parametrize(
    ("method", "documents"), [("prefix-propagation", 10), ("readers", 10), ("readers", 0), ("tfidf", 0)]
)
def test_few_documents_give_an_estimate(tmp_path: Path, method: str, documents: int) -> None:
    settings = settings_with_dev(tmp_path, 10, method=method)
    if not documents:
        settings = RunSettings(**{**vars(settings), "dev_files": ()})
    metrics = train(settings, tmp_path / "run", progress=Notes()).metrics
    assert (metrics["trust"]["kind"], metrics["trust"]["documents"]) == ("estimate", documents or 24)
    assert not RunDirectory(tmp_path / "run").predictions("calibration").exists()


def test_where_no_threshold_is_good_enough(tmp_path: Path) -> None:
    settings = settings_with_dev(tmp_path, 10, method="tfidf", target_precision=0.99)
    flags = ["--train-files", *settings.train_files, "--model", settings.model, "--method", "tfidf"]
    out, _ = call("train", *flags, "--target-precision", 0.99, "--run-dir", tmp_path / "run")
    assert "No answer is accepted: 24 documents do not show that 99.0% of any answers are right" in out
    assert {one.decision for one in load_run(tmp_path / "run").predict(["w1 w2", "w3"])} == {"review"}


def test_without_a_target_nothing_is_decided(tmp_path: Path) -> None:
    settings = settings_with_dev(tmp_path, 30, method="tfidf", target_precision=None)
    assert "trust" not in train(settings, tmp_path / "run", progress=Notes()).metrics
    out, told = call("predict", tmp_path / "run", settings.test_files[0])
    assert "decision" not in out and "accept" not in told

"""`prefixprop evaluate`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import call
from prefixprop.data import fingerprint, load_data
from prefixprop.evaluate import PredictionSet, write_predictions
from prefixprop.train import RunDirectory

from tiny_questions import invented
from tiny_runs import finish_again, make_run, make_wikihop_run, texts, write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("evaluate"))


@pytest.fixture(scope="module")
def wikihop_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    questions = {split: invented(12, seed) for seed, split in enumerate(("train", "dev", "test"))}
    return make_wikihop_run(tmp_path_factory.mktemp("questions"), questions)


def evaluate(*arguments: object, status: int = 0) -> str:
    return call("evaluate", *arguments, status=status)[1 if status else 0]


def metrics_of(*arguments: object) -> dict[str, Any]:
    return json.loads(evaluate(*arguments, "--json"))


@pytest.mark.parametrize("kind", ["run", "wikihop_run"])
def test_the_numbers_are_those_of_the_run(kind: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(kind)
    stored = json.loads((run / "metrics.json").read_text())
    for split in ("dev", "test"):
        found = metrics_of(run, "--split", split)
        assert found["before"] == pytest.approx(stored[split], abs=1e-5)
        assert found["after"] == pytest.approx(stored[f"{split}_calibrated"], abs=1e-5)
        assert found["temperature"] == stored["temperature"]
        assert found["before"]["nll"] > found["after"]["nll"]
        assert "accuracy" in found["before"] and ("micro_f1" in found["before"]) == (kind == "run")
    found = metrics_of(run, "--predictions", run / "predictions" / "test.jsonl")
    assert (found["before"], found["after"]) == (stored["test"], stored["test_calibrated"])
    alone = metrics_of("--predictions", run / "predictions" / "test.jsonl")
    assert (alone["before"], alone["after"], alone["temperature"]) == (stored["test"], None, None)


def test_a_row_for_every_label(run: Path, wikihop_run: Path, tmp_path: Path) -> None:
    found = metrics_of(run)["labels"]
    assert [row["label"] for row in found] == ["art", "law", "tax"] and sum(row["support"] for row in found) == 30
    assert metrics_of(wikihop_run)["labels"] == []
    odds = np.array([[1.0, -1.0], [-1.0, 2.0]])
    several = PredictionSet(("a", "b"), ((0,), ()), odds, ("law firm", "tax"), decisions=odds > 0)
    write_predictions(tmp_path / "x.jsonl", several)
    table = evaluate("--predictions", tmp_path / "x.jsonl")
    (row,) = (line for line in table.splitlines() if "law firm" in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["1", "1", "1.000", "1.000", "1.000", "1.000"]
    refused = evaluate("--predictions", tmp_path / "x.jsonl", "--confusion", tmp_path / "x.png", status=1)
    assert "--confusion needs documents with one label each" in refused
    evaluate("--predictions", tmp_path / "x.jsonl", "--figure", tmp_path / "x.png")
    assert (tmp_path / "x.png").is_file()


def test_the_table(run: Path) -> None:
    stored = json.loads((run / "metrics.json").read_text())
    assert "after scaling" not in evaluate("--predictions", run / "predictions" / "test.jsonl")
    printed = evaluate(run)
    assert f"after scaling (T = {stored['temperature']:.3f})" in printed
    rows = {line.split("│")[1].strip(): line.split("│")[2:4] for line in printed.splitlines() if line.count("│") == 4}
    assert rows.keys() == stored["test"].keys()
    assert rows["documents"][0].strip() == "30"
    for name in ("micro_f1", "ece", "nll"):
        assert [float(cell) for cell in rows[name]] == pytest.approx(
            [stored["test"][name], stored["test_calibrated"][name]], abs=1e-4
        )


def test_your_documents_and_questions(run: Path, wikihop_run: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "own.jsonl", texts(30, 2), 2)  # the test documents of the run
    for each, own in ((run, path), (wikihop_run, wikihop_run.parent / "data" / "test.json")):
        stored = json.loads((each / "metrics.json").read_text())
        assert metrics_of(each, "--input", own)["before"] == pytest.approx(stored["test"], abs=1e-5)
    path.write_text(path.read_text().replace('"law"', '"low"'))
    assert "the label 'low' is unknown; the labels are art, law, tax" in evaluate(run, "--input", path, status=1)
    assert "there is no column 'body'" in evaluate(run, "--input", path, "--text-column", "body", status=1)


def test_figures(run: Path, wikihop_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = tmp_path / "reliability.png", tmp_path / "confusion.svg"
    evaluate(run, "--figure", figures[0], "--confusion", figures[1])
    assert figures[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in figures[1].read_text()
    evaluate(wikihop_run, "--figure", figures[0])


def test_splits_that_are_no_longer_those_of_the_run(tmp_path: Path) -> None:
    run, test = make_run(tmp_path, family="roberta"), tmp_path / "test.jsonl"
    assert metrics_of(run)["before"]["documents"] == 30
    lines = test.read_text().splitlines(keepends=True)
    test.write_text("".join(lines[:-1]))
    assert "the documents have changed since the run was trained" in evaluate(run, status=1)
    assert metrics_of(run, "--input", test, "--id-column", "id")["before"]["documents"] == 29


def test_a_dev_set_drawn_from_the_training_set_must_be_the_same(tmp_path: Path) -> None:
    run, train = make_run(tmp_path, family="roberta", dev_files=[], test_files=[]), tmp_path / "train.jsonl"
    stored = fingerprint(load_data(**RunDirectory(run).read_settings().source))
    (run / "environment.json").write_text(json.dumps({"documents": stored}))
    finish_again(run)
    assert metrics_of(run, "--split", "dev")["before"]["documents"] == 3
    assert "the run has no test documents; try --split dev" in evaluate(run, status=1)
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:-1]))
    assert "the documents have changed since the run was trained" in evaluate(run, "--split", "dev", status=1)
    (run / "environment.json").unlink()
    finish_again(run)
    train.write_text(train.read_text().replace('"tax"', '"zoo"'))
    assert "The data has the labels art, law, zoo, but the run" in evaluate(run, "--split", "dev", status=1)


@pytest.mark.parametrize("limit", [None, 7])
def test_a_split_needs_only_its_own_files(limit: int | None, tmp_path: Path) -> None:
    run = make_run(tmp_path, family="roberta", max_test_documents=limit)
    if limit is not None:
        (run / "predictions" / "test.jsonl").unlink()
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").unlink()
    assert metrics_of(run, "--split", "test")["after"]["documents"] == (limit or 30)
    assert "dev.jsonl: there is no such file" in evaluate(run, "--split", "dev", status=1)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (None, (), "Give the directory of a run, or stored predictions"),
        ("run", ("--input", "x.jsonl", "--split", "dev"), "--split would change nothing here: --input has"),
        ("run", ("--input", "x.jsonl", "--predictions", "x.jsonl"), "--input would change nothing here"),
        ("run", ("--predictions", "x.jsonl", "--batch-tokens", "9"), "--batch-tokens would change nothing here"),
        ("run", ("--predictions", "x.jsonl", "--long", "truncate"), "--long would change nothing here"),
        ("run", ("--text-column", "body"), "--text-column would change nothing here: it is for --input"),
        ("run", ("--figure", "a.gif"), "a.gif: figures are written as"),
        ("run", ("--data-dir", "."), "--data-dir is for runs on a named task"),
        (None, ("--predictions", "nowhere.jsonl"), "there is no such file of predictions"),
        ("wikihop_run", ("--data-dir", "."), "there is no train. The folder must hold"),
        ("wikihop_run", ("--input", "x.jsonl", "--id-column", "n"), "questions have columns of their own"),
        ("wikihop_run", ("--long", "truncate"), "--long would change nothing here: questions are always read in"),
        ("wikihop_run", ("--confusion", "c.png"), "with one label each, of labels that all documents share"),
    ],
)
def test_what_is_refused(
    kind: str | None, arguments: tuple[str, ...], message: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    given = () if kind is None else (request.getfixturevalue(kind),)
    with contextlib.chdir(tmp_path):
        told = evaluate(*given, *arguments, status=1)
    assert told.startswith("Error: ") and message in told


def test_damaged_predictions(run: Path, tmp_path: Path) -> None:
    path, damaged = run / "predictions" / "test.jsonl", tmp_path / "cut\x1b.jsonl"
    lines = [json.loads(line) | {"label": None} for line in path.read_text().splitlines()]
    damaged.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "has no label, so its prediction cannot be evaluated" in evaluate("--predictions", damaged, status=1)
    damaged.write_text(path.read_text()[:-30])
    told = evaluate("--predictions", damaged, status=1)
    assert told.startswith("Error: ") and r"cut\x1b.jsonl:30: broken JSON" in told and len(told.splitlines()) == 1

"""`prefixprop evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prefixprop.cli.app import app
from prefixprop.evaluate import read_predictions
from prefixprop.settings.documents import fingerprint, load_whole_task
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


def call(*arguments: object, status: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["evaluate", *map(str, arguments)])
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result.stderr if status else result.stdout


def measured(*arguments: object) -> dict[str, Any]:
    return json.loads(call(*arguments, "--json"))


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("kind", ["run", "wikihop_run"])
def test_the_numbers_are_those_of_the_run(kind: str, split: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(kind)
    stored = json.loads((run / "metrics.json").read_text())
    found = measured(run, "--split", split)
    assert found["before"] == pytest.approx(stored[split], abs=1e-5)
    assert found["after"] == pytest.approx(stored[f"{split}_calibrated"], abs=1e-5)
    assert found["temperature"] == stored["temperature"]
    assert found["before"]["nll"] > found["after"]["nll"]
    assert "accuracy" in found["before"] and ("micro_f1" in found["before"]) == (kind == "run")


@pytest.mark.parametrize("kind", ["run", "wikihop_run"])
def test_stored_predictions_give_the_very_same_numbers(kind: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(kind)
    stored = json.loads((run / "metrics.json").read_text())
    found = measured(run, "--predictions", run / "predictions" / "test.jsonl")
    assert (found["before"], found["after"]) == (stored["test"], stored["test_calibrated"])


def test_stored_predictions_need_no_run(run: Path) -> None:
    path = run / "predictions" / "dev.jsonl"
    found = measured("--predictions", path)
    assert found["before"] == read_predictions(path).evaluate()
    assert found["after"] is None and found["temperature"] is None
    table = call("--predictions", path)
    assert "value" in table and "after scaling" not in table


def test_the_table(run: Path) -> None:
    stored = json.loads((run / "metrics.json").read_text())
    printed = call(run)
    assert f"after scaling (T = {stored['temperature']:.3f})" in printed
    rows = {line.split("│")[1].strip(): line.split("│")[2:4] for line in printed.splitlines() if line.count("│") == 4}
    assert rows.keys() == stored["test"].keys()
    assert rows["documents"][0].strip() == "30"
    for name in ("micro_f1", "ece", "nll"):
        assert [float(cell) for cell in rows[name]] == pytest.approx(
            [stored["test"][name], stored["test_calibrated"][name]], abs=1e-4
        )


def test_documents_of_ones_own(run: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "own.jsonl", texts(30, 2), 2)  # the test documents of the run
    stored = json.loads((run / "metrics.json").read_text())
    assert measured(run, "--input", path)["before"] == pytest.approx(stored["test"], abs=1e-5)
    path.write_text(path.read_text().replace('"law"', '"low"'))
    assert "the label 'low' is unknown; the labels are art, law, tax" in call(run, "--input", path, status=1)
    assert "there is no column 'body'" in call(run, "--input", path, "--text-column", "body", status=1)


def test_questions_of_ones_own(wikihop_run: Path) -> None:
    stored = json.loads((wikihop_run / "metrics.json").read_text())
    path = wikihop_run.parent / "data" / "test.json"
    assert measured(wikihop_run, "--input", path)["before"] == pytest.approx(stored["test"], abs=1e-5)


def test_figures(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = tmp_path / "reliability.png", tmp_path / "confusion.svg"
    call(run, "--figure", pictures[0], "--confusion", pictures[1])
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in pictures[1].read_text()
    assert "pictures are written as" in call(run, "--figure", tmp_path / "picture.xyz", status=1)


@pytest.mark.parametrize(
    ("kind", "arguments", "told"),
    [
        ("run", ("--input", "x.jsonl", "--split", "dev"), "--split would change nothing here: --input has"),
        ("run", ("--input", "x.jsonl", "--data-dir", "."), "--data-dir would change nothing here: --input has"),
        ("run", ("--predictions", "x.jsonl", "--batch-tokens", "9"), "--batch-tokens would change nothing here"),
        ("run", ("--text-column", "body"), "--text-column would change nothing here: it is for --input"),
        ("wikihop_run", ("--input", "x.jsonl", "--id-column", "n"), "questions have columns of their own"),
    ],
)
def test_options_without_effect(
    kind: str, arguments: tuple[str, ...], told: str, request: pytest.FixtureRequest
) -> None:
    assert told in call(request.getfixturevalue(kind), *arguments, status=1)


def test_splits_that_are_no_longer_those_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    stored = fingerprint(load_whole_task(RunDirectory(run).read_settings()))
    (run / "environment.json").write_text(json.dumps({"documents": stored}))
    finish_again(run)
    assert measured(run)["before"]["documents"] == 30
    lines = (tmp_path / "test.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "test.jsonl").write_text("".join(lines[:-1]))
    assert "the documents have changed since the run was trained" in call(run, status=1)
    assert measured(run, "--input", tmp_path / "test.jsonl", "--id-column", "id")["before"]["documents"] == 29


def test_no_confusion_of_candidates(wikihop_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    call(wikihop_run, "--figure", tmp_path / "reliability.png")
    assert "the candidates of questions are none" in call(wikihop_run, "--confusion", tmp_path / "c.png", status=1)


def test_faults(run: Path, wikihop_run: Path, tmp_path: Path) -> None:
    path = run / "predictions" / "test.jsonl"
    assert "Give the directory of a run, or stored predictions" in call(status=1)
    assert "--split 'train' is unknown; choose one of dev, test" in call(run, "--split", "train", status=1)
    assert "give one of the two" in call(run, "--input", path, "--predictions", path, status=1)
    for option in ("--figure", "--confusion"):
        told = call(run, option, tmp_path / "picture.gif", status=1)
        assert "picture.gif: pictures are written as" in told and "accuracy" not in told
    assert "there is no such file of predictions" in call("--predictions", tmp_path / "nowhere.jsonl", status=1)
    assert "--data-dir is for runs on a named task" in call(run, "--data-dir", tmp_path, status=1)
    assert "has no WikiHop questions" in call(wikihop_run, "--data-dir", tmp_path, status=1)
    unlabelled = tmp_path / "predictions.jsonl"
    lines = [json.loads(line) | {"label": None} for line in path.read_text().splitlines()]
    unlabelled.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "has no label, so its prediction cannot be evaluated" in call("--predictions", unlabelled, status=1)


def test_a_run_without_test_documents(tmp_path: Path) -> None:
    run = make_run(tmp_path, family="roberta", test_files=[])
    assert "the run's task has no test documents; try --split dev" in call(run, status=1)
    assert measured(run, "--split", "dev")["before"]["documents"] == 30


def test_data_with_other_labels(tmp_path: Path) -> None:
    run = make_run(tmp_path, family="roberta")
    train = tmp_path / "train.jsonl"
    train.write_text(train.read_text().replace('"tax"', '"zoo"'))
    (tmp_path / "test.jsonl").write_text((tmp_path / "test.jsonl").read_text().replace('"tax"', '"zoo"'))
    (tmp_path / "dev.jsonl").write_text((tmp_path / "dev.jsonl").read_text().replace('"tax"', '"zoo"'))
    assert "The data has the labels art, law, zoo, but the run" in call(run, status=1)

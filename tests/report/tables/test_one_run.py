"""The report on one run: labels, mistakes and how sure it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prefixprop.report import Report, make_report
from prefixprop.report.tables.table import Table
from prefixprop.runs.find import read_run
from prefixprop.train import train

from tiny_questions import invented
from tiny_runs import finish_again, make_results, make_run, make_wikihop_run
from tiny_training import Notes, tiny_settings


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("one"))


def named(report: Report, ending: str) -> Table:
    (table,) = (table for table in report.measured if table.name.endswith(ending))
    return table


def column(table: Table, title: str) -> list[str]:
    return [cell.text for found in table.columns if found.title == title for cell in found.cells]


def test_how_every_label_fares(run: Path) -> None:
    found = read_run(run).predictions("test")
    labels, guesses = found.known_labels, found.logits.argmax(axis=1)
    table = named(make_report([run]), "-labels")
    assert column(table, "Label") == list(found.label_names or ())
    assert column(table, "Documents") == [str((labels == label).sum()) for label in range(3)]
    assert column(table, "Predicted") == [str((guesses == label).sum()) for label in range(3)]
    assert column(table, "Found, %")[0] == f"{100 * (guesses[labels == 0] == 0).mean():.1f}"
    never = [guess not in guesses for guess in range(3)]
    assert [text == "—" for text in column(table, "Right when predicted, %")] == never


def test_its_surest_mistakes_and_how_they_begin(run: Path) -> None:
    found = read_run(run)
    predictions = found.predictions("test")
    assert found.temperature is not None
    scaled = predictions.with_temperature(found.temperature).probabilities
    wrong = np.flatnonzero(scaled.argmax(axis=1) != predictions.known_labels)
    expected = [predictions.ids[row] for row in wrong[np.argsort(-scaled[wrong].max(axis=1))]][:10]
    table = named(make_report([run]), "-mistakes")
    assert column(table, "Document") == expected
    rows = [json.loads(line) for line in (run.parent / "test.jsonl").read_text().splitlines()]
    texts, labels = {row["id"]: row["text"] for row in rows}, {row["id"]: row["label"] for row in rows}
    assert column(table, "It begins") == [texts[one] for one in expected]
    assert column(table, "Label") == [labels[one] for one in expected]
    assert table.notes[0].startswith(f"{len(wrong)} mistakes in all; first those that the run is surest of")
    assert len(table.notes) == 1


@pytest.mark.parametrize("method", ["head-only", "tfidf"])
def test_mistakes_where_a_part_of_the_training_set_judges(tmp_path: Path, method: str) -> None:
    settings = tiny_settings(tmp_path, method=method, dev_files=(), test_files=(), epochs=1)
    file = Path(settings.train_files[0])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for one, other in zip(rows[:4:2], rows[1:4:2], strict=True):  # nobody gets these right
        one["label"], other["label"] = other["label"], one["label"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = train(settings, tmp_path / "run", progress=Notes())
    texts = {row["id"]: row["text"] for row in rows}
    assert found.metrics["dev"]["documents"] == (len(rows) if method == "tfidf" else 3)
    table = named(make_report([found.run_dir]), "-mistakes")
    assert column(table, "It begins") == [texts[one] for one in column(table, "Document")] != []


def test_other_documents_are_not_shown_as_those_of_the_run(run: Path) -> None:
    environment = run / "environment.json"
    before = environment.read_text()
    environment.write_text(json.dumps({"documents": "another fingerprint"}))
    finish_again(run)
    table = named(make_report([run]), "-mistakes")
    environment.write_text(before)
    finish_again(run)
    assert column(table, "Document") and not column(table, "It begins")
    assert table.notes[-1].startswith("How they begin is not shown")


def test_documents_that_are_gone_or_elsewhere_are_told(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run.parent / "test.jsonl"
    file.rename(file.with_suffix(".away"))
    gone = named(make_report([run]), "-mistakes")
    file.with_suffix(".away").rename(file)
    monkeypatch.setattr("prefixprop.data.newsgroups._fetched_rows", lambda: pytest.fail("it downloads"))
    far = named(make_report([make_results(tmp_path / "run", task="newsgroups")]), "-mistakes")
    for table in (gone, far):
        assert column(table, "Document") and not column(table, "It begins")
        assert "the documents are not at hand" in table.notes[-1]


def test_how_sure_it_is_stands_in_words(tmp_path: Path) -> None:
    run = make_results(tmp_path / "run", documents=200)
    metrics = json.loads((run / "metrics.json").read_text())["test"]
    right, sure = make_report([run]).measured[0].findings
    count = round(200 * metrics["accuracy"])
    assert right == f"Prefix-propagation gets {count} of 200 test documents right: {100 * metrics['accuracy']:.1f} %."
    assert f"its calibration error is {metrics['ece']:.3f}, and " in sure


def test_questions_have_mistakes_but_no_labels(tmp_path: Path) -> None:
    questions = {split: invented(20, seed) for seed, split in enumerate(("train", "dev", "test"))}
    report = make_report([make_wikihop_run(tmp_path, questions)])
    assert not any(table.name.endswith("-labels") for table in report.measured)
    table = named(report, "-mistakes")
    by_id = {question.id: question for question in questions["test"]}
    assert column(table, "It begins") == [by_id[one].query for one in column(table, "Document")]

"""The report on one run: its verdict, facts and tables, of invented results and of runs that were trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import call
from prefixprop.evaluate import accuracy_interval
from prefixprop.report import make_report
from prefixprop.report.one_run import JudgedRun
from prefixprop.report.report import Section
from prefixprop.report.table import Table
from prefixprop.runs.find import read_run
from prefixprop.train import train

from tiny_questions import invented
from tiny_runs import finish_again, make_results, make_run, make_wikihop_run
from tiny_training import Notes, tiny_settings

TFIDF = "TF-IDF baseline"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Readers with two learning rates, judged on folds of the training set, and a test set."""
    folder = tmp_path_factory.mktemp("readers")
    settings = tiny_settings(folder, method="readers", dev_files=(), epochs=2, mix_baseline="no")
    return train(settings, folder / "run", progress=Notes()).run_dir


def section_of(run: Path) -> Section:
    (section,) = make_report([run]).sections
    return section


def named(section: Section, ending: str) -> Table:
    (table,) = (table for table in section.tables if table.name.endswith(ending))
    return table


def metrics_of(run: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return metrics


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def test_the_verdict_has_the_baseline_on_the_same_documents(tmp_path: Path) -> None:
    run = make_results(tmp_path / "run", documents=200)
    test = metrics_of(run)["test"]
    finish_again(run, baseline={"model": "TF-IDF", "dev": test, "test": test | {"accuracy": 0.625, "nll": 0.5}})
    section = section_of(run)
    right = round(200 * test["accuracy"])
    low, high = accuracy_interval(right, 200)
    assert list(section.findings) == [
        f"Prefix-propagation got {right} of 200 test documents right: {percent(test['accuracy'])} % (95 % interval "
        f"{percent(low)} to {percent(high)}); the {TFIDF} got 62.5 % on the same documents."
    ]
    table = named(section, "-results")
    assert list(table.cells["Method"]) == ["prefix-propagation", TFIDF]
    scaled = metrics_of(run)["test_calibrated"]["nll"]
    assert list(table.cells["NLL ↓"]) == [f"{scaled:.3f}", "0.500"] and "200 test documents" in table.notes[0]
    assert section.facts == {
        "Model": "longformer-mini-4096", "Documents": "60 training, 200 dev, 200 test",
        "Tokens cut": section.facts["Tokens cut"], "Trained": "45 parameters, 0.45 % of the encoder",
        "Time": "30 s on cpu", "Seed": "1",
    }  # fmt: skip
    lengths = read_run(run).lengths
    cut = 1 - sum(min(length, 64) for length in lengths) / sum(lengths)
    assert section.facts["Tokens cut"] == f"{cut:.0%}, those after the first 64 of a document"
    metrics = named(section, "-metrics").cells.set_index("Metric")
    assert metrics.loc["accuracy", "test, baseline"] == "0.625"
    assert metrics.loc["nll", "dev"] == f"{metrics_of(run)['dev']['nll']:.4g}"


def test_the_command_trains_the_same_run_again(readers: Path, tmp_path: Path) -> None:
    _, train_command, *flags, run_dir, again = section_of(readers).command.splitlines()[0].split()
    assert (train_command, run_dir, again) == ("train", "--run-dir", f"{readers}-again")
    call("train", *flags, "--run-dir", tmp_path / "again")
    assert metrics_of(tmp_path / "again")["test"] == metrics_of(readers)["test"]
    settings = dict(named(section_of(readers), "-settings").cells.to_numpy())
    assert settings["method"] == "readers" and settings["epochs"] == "2"


def test_readers_are_judged_on_left_out_documents_and_not_on_a_dev_set(readers: Path) -> None:
    metrics, section = metrics_of(readers), section_of(readers)
    expected, documents = metrics["expected_accuracy"], metrics["dev"]["documents"]
    assert list(section.findings)[1] == (
        f"Expected accuracy: {percent(expected['accuracy'])} % (95 % interval {percent(expected['low'])} to "
        f"{percent(expected['high'])}), from {documents} held-out documents."
    )
    assert f"{documents} held-out" in section.facts["Documents"] and "dev" not in section.facts["Documents"]
    rates = named(section, "-learning-rates")
    assert list(rates.cells["Learning rate"]) == [f"{one['learning_rate']:g}" for one in metrics["learning_rates"]]
    assert list(rates.cells["Accuracy, %"]) == [percent(one["accuracy"]) for one in metrics["learning_rates"]]
    chosen = rates.cells["Learning rate"][rates.cells["Outcome"] == "chosen"]
    assert list(chosen) == [f"{metrics['mix']['chosen']['readers']:g}"] and "held-out" in rates.notes[0]
    assert "held-out" in named(section, "-metrics").cells and "dev" not in named(section, "-metrics").cells
    baseline, own = metrics["baseline"]["test"], metrics["test"]
    assert baseline["documents"] == own["documents"]
    assert list(named(section, "-results").cells["F1 micro, % ↑"]) == [
        percent(own["accuracy"]), percent(baseline["accuracy"])
    ]  # fmt: skip


def test_a_mix_shows_its_parts(tmp_path: Path) -> None:
    run = make_results(tmp_path / "run", method="readers")
    parts = {split: metrics_of(run)[split] for split in ("dev", "test")}
    mix = {"weights": {"readers": 0.4, "words": 0.6}, "chosen": {"readers": 0.001, "words": 1.0}}
    finish_again(
        run, mix=mix, readers=parts, baseline={"model": "TF-IDF"} | parts, judged_on="5 folds", temperature=1.0
    )
    table = named(section_of(run), "-results")
    assert list(table.cells["Method"]) == ["mix of readers and TF-IDF", "readers alone", TFIDF]
    assert "Weights of the mix: readers 0.400, words 0.600." in table.notes


def test_how_every_label_fares(run: Path) -> None:
    found = read_run(run).predictions("test")
    labels, guesses = found.known_labels, found.logits.argmax(axis=1)
    cells = named(section_of(run), "-labels").cells
    assert list(cells["Label"]) == list(found.label_names or ())
    assert list(cells["Documents"]) == [str((labels == label).sum()) for label in range(3)]
    assert list(cells["Predicted"]) == [str((guesses == label).sum()) for label in range(3)]
    assert cells["Recall, %"][0] == percent((guesses[labels == 0] == 0).mean())
    never = [guess not in guesses for guess in range(3)]
    assert [text == "—" for text in cells["Precision, %"]] == never


def test_the_most_confident_mistakes_and_how_they_begin(run: Path) -> None:
    judged = JudgedRun(read_run(run), "test", "documents")
    scaled = judged.answered.probabilities
    wrong = np.flatnonzero(scaled.argmax(axis=1) != judged.answered.known_labels)
    expected = [judged.answered.ids[row] for row in wrong[np.argsort(-scaled[wrong].max(axis=1))]][:10]
    table = named(section_of(run), "-mistakes")
    rows = {row["id"]: row for row in map(json.loads, (run.parent / "test.jsonl").read_text().splitlines())}
    assert list(table.cells["Document"]) == expected and table.as_cards
    assert list(table.cells["Text"]) == [rows[one]["text"] for one in expected]
    assert list(table.cells["Label"]) == [rows[one]["label"] for one in expected]
    assert table.notes == [f"{len(expected)} of {len(wrong)} mistakes, those that the run is most confident of."]


def test_mistakes_on_left_out_documents_are_training_documents(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, method="tfidf", dev_files=(), test_files=())
    file = Path(settings.train_files[0])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for one, other in zip(rows[:4:2], rows[1:4:2], strict=True):  # nobody gets these right
        one["label"], other["label"] = other["label"], one["label"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = train(settings, tmp_path / "run", progress=Notes()).run_dir
    section = section_of(run)
    assert f"of {len(rows)} held-out documents right" in next(iter(section.findings))
    table, texts = named(section, "-mistakes"), {row["id"]: row["text"] for row in rows}
    assert list(table.cells["Text"]) == [texts[one] for one in table.cells["Document"]] != []
    assert "Model" not in section.facts and list(named(section, "-results").cells["Method"]) == ["tfidf"]


def test_texts_that_are_changed_or_not_at_hand_are_not_shown(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, environment = run.parent / "test.jsonl", run / "environment.json"
    file.rename(file.with_suffix(".away"))
    gone = named(section_of(run), "-mistakes")
    file.with_suffix(".away").rename(file)
    before = environment.read_text()
    environment.write_text(json.dumps({"documents": "another fingerprint"}))
    finish_again(run)
    changed = named(section_of(run), "-mistakes")
    environment.write_text(before)
    finish_again(run)
    monkeypatch.setattr("prefixprop.data.loaders._fetched_rows", lambda: pytest.fail("it downloads"))
    far = named(section_of(make_results(tmp_path / "run", task="newsgroups")), "-mistakes")
    for table in (gone, changed, far):
        assert "Text" not in table.cells and len(table.cells)
        assert table.notes[-1].startswith("Their texts are not shown: the documents are not at hand")


@pytest.mark.parametrize("method", ["tfidf", "readers", "head-only"])
def test_several_labels_have_average_precision_and_no_confusion(tmp_path: Path, method: str) -> None:
    settings = tiny_settings(tmp_path, method=method, epochs=None if method == "tfidf" else 1)
    for file in (*settings.train_files, *settings.dev_files, *settings.test_files):
        rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
        lists = [row | {"label": [row["label"], "new"][: 1 + at % 2]} for at, row in enumerate(rows)]
        Path(file).write_text("".join(json.dumps(row) + "\n" for row in lists))
    run = train(settings, tmp_path / "run", progress=Notes()).run_dir
    metrics, report = metrics_of(run), make_report([run])
    (section,) = report.sections
    told, *_ = section.findings
    score = percent(metrics["test_calibrated"]["average_precision"])
    assert f" reached {score} % average precision on 8 test documents" in told
    assert (f"the {TFIDF} got {percent(metrics['baseline']['test']['average_precision'])} %" in told) == (
        method != "tfidf"
    )
    assert next(iter(named(section, "-results").cells["AP macro, % ↑"])) == score
    labels = named(section, "-labels").cells
    assert list(labels["Label"]) == ["art", "law", "new"] and "AP, %" in labels
    assert not any(figure.name.endswith("-confusion") for figure in section.figures)
    assert "average precision" in report.page()


def test_which_answers_to_accept_is_told(tmp_path: Path) -> None:
    run = make_results(tmp_path / "run", documents=200)
    trust = {"target": 0.9, "threshold": 0.8, "kind": "estimate", "documents": 200, "accepted": 100, "accuracy": 0.95}
    finish_again(run, trust=trust | {"test": {"documents": 200}})
    _, told = section_of(run).findings
    assert told.startswith("Accept answers with a confidence of 0.800 or more, 50% of documents")


def test_questions_have_mistakes_but_no_labels(tmp_path: Path) -> None:
    questions = {split: invented(20, seed) for seed, split in enumerate(("train", "dev", "test"))}
    run = make_wikihop_run(tmp_path, questions)
    finish_again(run, baseline={"model": "BM25 of the question", "test": metrics_of(run)["test"]})
    section = section_of(run)
    assert "; the BM25 baseline got " in next(iter(section.findings))
    assert not any(table.name.endswith("-labels") for table in section.tables)
    table = named(section, "-mistakes")
    by_id = {question.id: question for question in questions["test"]}
    assert list(table.cells["Text"]) == [by_id[one].query for one in table.cells["Document"]]
    assert "test questions right" in next(iter(section.findings))

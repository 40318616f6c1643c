"""Tables of several runs: means over seeds, the TF-IDF baseline, the paper's values, and cross-validations."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from prefixprop.report import archive_runs, find_runs, make_report
from prefixprop.report.choose import compare
from prefixprop.report.results import fold_tables, paper_value
from prefixprop.report.table import BOLD, UNDERLINE, Table, to_markdown
from prefixprop.runs.find import Run
from prefixprop.settings.resolve import resolve
from prefixprop.train import RunSettings

from tiny_runs import finish_again, make_results

TFIDF = "TF-IDF baseline"


def add(folder: Path, baseline: float | None = None, **settings: Any) -> Path:
    run = make_results(folder / f"run{len(list(folder.iterdir()))}", **settings)
    if baseline is not None:
        measured = json.loads((run / "metrics.json").read_text())["dev"] | {"micro_f1": baseline, "ece": 0.01}
        finish_again(run, baseline={"model": "TF-IDF", "dev": measured, "test": measured})
    return run


def tables_of(folder: Path, **options: Any) -> dict[str, Table]:
    return {table.title: table for table in make_report([folder], **options).tables}


def column(table: Table, heading: str) -> list[str]:
    return list(table.cells[heading])


def seeds_of(folder: Path, metric: str, part: str = "test") -> list[float]:
    files = sorted(folder.glob("propagation*/metrics.json"))
    return [json.loads(file.read_text())[part][metric] for file in files]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with three seeds, one of them at a second learning rate, and a run on questions."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        make_results(folder / f"propagation{seed}", skill=1.5, seed=seed)
        make_results(folder / f"tuning{seed}", skill=0.5, seed=seed, method="prefix-tuning")
    make_results(folder / "searched", skill=0.2, seed=1, learning_rate=1e-2)
    make_results(folder / "two-questions", task="wikihop")
    make_results(folder / "two-questions2", task="wikihop", seed=2)
    return folder


def test_means_over_seeds_in_brief_and_in_full(runs: Path) -> None:
    tables = tables_of(runs)
    values = [100 * value for value in seeds_of(runs, "micro_f1")]
    for kind in ("methods", "quality"):
        table = tables[f"hyperpartisan, test: {kind}"]
        assert column(table, "Method") == ["prefix-propagation", "prefix-tuning"]
        cell = f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"
        assert column(table, "F1 micro, % ↑")[0] == cell
        assert list(table.all_marks["F1 micro, % ↑"]) == [BOLD, UNDERLINE]
    low, high = stats.t.interval(0.95, 2, loc=statistics.fmean(values), scale=stats.sem(values))
    assert column(tables["hyperpartisan, test: methods"], "95 % interval")[0] == f"{low:.1f} to {high:.1f}"
    quality = tables["hyperpartisan, test: quality"]
    assert column(quality, "Seeds") == ["3", "3"]
    assert column(quality, "Learning rate") == ["0.005 (of 2 tried)", "0.005"]
    scaled = seeds_of(runs, "nll", "test_calibrated")
    cell = column(tables["hyperpartisan, test: calibration"], "NLL after scaling ↓")[0]
    assert cell == f"{statistics.fmean(scaled):.3f} ± {statistics.stdev(scaled):.3f}"
    assert "Accuracy, % ↑" in tables["wikihop, test: quality"].cells and "Accuracy, % ↑" not in quality.cells


def test_methods_by_task_as_in_the_papers_tables(runs: Path) -> None:
    tables = tables_of(runs)
    for title, metric, kind in (
        ("Methods by task", "F1 micro, % ↑", "quality"),
        ("Calibration error by task", "ECE ↓", "calibration"),
    ):
        table = tables[title]
        assert column(table, "Method") == ["prefix-propagation", "prefix-tuning"]
        assert column(table, f"hyperpartisan {metric}") == column(tables[f"hyperpartisan, test: {kind}"], metric)
    assert column(tables["Methods by task"], "wikihop Accuracy, % ↑")[1] == "—"


def test_times_of_one_machine_are_ranked_and_of_several_are_not(tmp_path: Path) -> None:
    add(tmp_path)
    other = add(tmp_path, method="lora", skill=0.3)
    table = tables_of(tmp_path)["hyperpartisan, test: methods"]
    assert BOLD in set(table.all_marks["Time, s ↓"])
    (other / "environment.json").write_text('{"device": "H200", "packages": {"prefixprop": "0.1.0"}}')
    finish_again(other)
    table = tables_of(tmp_path)["hyperpartisan, test: methods"]
    assert set(table.all_marks["Time, s ↓"]) == {""}
    assert table.notes[-1] == "Not all runs were made alike: device (cpu: 1, H200: 1)."


@pytest.mark.parametrize(
    ("keep", "with_folds", "note"),
    [
        ("best", False, "chose the learning rate and the epoch, so its numbers are optimistic."),
        ("last", False, "chose the learning rate, so its numbers are optimistic."),
        ("best", True, "chose the epoch, so its numbers are optimistic."),
        ("last", True, "chose nothing."),
    ],
)
def test_a_note_says_what_the_dev_set_chose(tmp_path: Path, keep: str, with_folds: bool, note: str) -> None:
    for seed in (1, 2):
        add(tmp_path, keep=keep, seed=seed)
    if with_folds:
        add(tmp_path, keep=keep, fold=0, folds=2)
    title = "hyperpartisan" + (", last epoch" if keep == "last" else "")
    tables = tables_of(tmp_path)
    assert f"The dev set {note}" in tables[f"{title}, dev: quality"].notes
    assert not any("chose" in one for one in tables[f"{title}, test: quality"].notes)


# --- the TF-IDF baseline --------------------------------------------------------------------------------------------


def test_the_baseline_is_the_last_row_and_takes_part_in_nothing(tmp_path: Path) -> None:
    for seed in (1, 2):
        add(tmp_path, 0.999, seed=seed)
        add(tmp_path, 0.999, seed=seed, method="prefix-tuning", skill=0.2)
    tables = tables_of(tmp_path)
    for kind in ("methods", "quality"):
        table = tables[f"hyperpartisan, test: {kind}"]
        assert column(table, "Method") == ["prefix-propagation", "prefix-tuning", TFIDF]
        assert column(table, "F1 micro, % ↑")[-1] == "99.9"
        assert list(table.all_marks["F1 micro, % ↑"]) == [BOLD, UNDERLINE, ""]
        assert any(note.startswith("The baseline") for note in table.notes)
    assert column(tables["hyperpartisan, test: calibration"], "ECE ↓")[-1] == "0.010"
    assert TFIDF not in to_markdown(tables["hyperpartisan: better than prefix-tuning?"])
    runs = find_runs([tmp_path]).runs
    assert {run.baseline("test", "documents") for run in runs} == {run.metric("test", "documents") for run in runs}
    archive_runs(runs, tmp_path / "archive")
    assert [*map(to_markdown, tables_of(tmp_path / "archive").values())] == [*map(to_markdown, tables.values())]


def test_every_number_of_training_documents_has_its_baseline(tmp_path: Path) -> None:
    add(tmp_path, 0.9)
    for seed, baseline in ((1, 0.6), (2, 0.8)):
        add(tmp_path, baseline, seed=seed, max_train_documents=20)
    quality = tables_of(tmp_path)["hyperpartisan, dev: quality"]
    rows = dict(zip(column(quality, "Method"), column(quality, "F1 micro, % ↑"), strict=True))
    assert rows[TFIDF] == "90.0" and rows[f"{TFIDF}, max train documents 20"] == "70.0 ± 14.1"


def test_a_baseline_on_left_out_documents_is_not_one_on_the_dev_set(tmp_path: Path) -> None:
    add(tmp_path, 0.6, method="prefix-tuning")
    readers = add(tmp_path, 0.8, method="readers")
    finish_again(readers, judged_on="5 folds")
    tables = tables_of(tmp_path)
    for split, method, baseline in (("dev", "prefix-tuning", "60.0"), ("held-out", "readers", "80.0")):
        table = tables[f"hyperpartisan, {split}: quality"]
        assert column(table, "Method") == [method, TFIDF] and column(table, "F1 micro, % ↑")[1] == baseline
    assert len(tables["hyperpartisan, test: quality"].cells) == 3
    assert column(tables["hyperpartisan: better than prefix-tuning?"], "Method") == ["readers"]
    assert len({table.name for table in tables.values()}) == len(tables)


# --- the paper ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "split", "method", "model", "metric", "value"),
    [
        ("newsgroups", "test", "prefix-tuning", "allenai/longformer-base-4096", "micro_f1", 69.7),
        ("newsgroups", "dev", "prefix-tuning", "allenai/longformer-base-4096", "micro_f1", None),
        ("wikihop", "test", "prefix-propagation", "longformer-mini-4096", "accuracy", 42.2),
        ("arxiv", "test", "prefix-tuning", "FacebookAI/roberta-base", "ece", 0.056),
        ("arxiv", "test", "lora", "longformer-mini-4096", "ece", None),
        ("arxiv", "test", "fine-tuning", "google/bigbird-base", "ece", None),
    ],
)
def test_what_the_paper_reports(
    task: str, split: str, method: str, model: str, metric: str, value: float | None
) -> None:
    assert paper_value(RunSettings(task=task, method=method, model=model), split, metric) == value
    kernel = RunSettings(task=task, method=method, model=model, kernel="rbf")
    assert paper_value(kernel, split, metric) is None


def test_the_papers_values_stand_beside_on_its_split_only(runs: Path) -> None:
    tables = tables_of(runs, with_paper=True)
    dev = tables["hyperpartisan, dev: quality"]
    assert column(dev, "F1 binary, % (paper)") == ["81.8", "75.3"]
    assert set(dev.all_marks["F1 binary, % (paper)"]) == {""}
    assert column(tables["hyperpartisan, dev: calibration"], "ECE (paper)") == ["0.093", "0.153"]
    assert any("not measured here" in note for note in dev.notes)
    without = [table for title, table in tables.items() if "dev" not in title and "wikihop" not in title]
    for table in [*without, *tables_of(runs).values()]:
        assert "(paper)" not in " ".join(table.cells.columns)


# --- folds ----------------------------------------------------------------------------------------------------------


def a_run(score: float, fold: int | None = None, **settings: Any) -> Run:
    folds = None if fold is None else settings.pop("folds", 3)
    chosen = RunSettings(**({"task": "hyperpartisan", "keep": "last", "fold": fold, "folds": folds} | settings))
    dev = {"micro_f1": score, "accuracy": score, "ece": score / 10, "documents": 10 + (fold or 0)}
    return Run(Path("run"), resolve(chosen), {"dev": dev}, labels=("no", "yes"))


def on_folds(scores: Sequence[float], **settings: Any) -> list[Run]:
    return [a_run(score, fold, **settings) for fold, score in enumerate(scores)]


def fold_table(runs: Sequence[Run], results: Sequence[Run] = ()) -> Table:
    ((table,),) = fold_tables(runs, compare([*runs, *results])).values()
    return table


def bold(table: Table) -> list[str]:
    return [table.cells["Learning rate"][at] for at in table.marks.index[(table.marks == BOLD).any(axis=1)]]


def test_every_candidate_has_its_mean_over_the_folds() -> None:
    runs = [
        *on_folds([0.8, 0.7, 0.9], learning_rate=1e-2),
        *on_folds([0.5, 0.6, 0.7], learning_rate=5e-4),
        *on_folds([0.4, 0.4, 0.4], method="lora", learning_rate=1e-3),
    ]
    table = fold_table(runs)
    assert table.title == "hyperpartisan, last epoch: cross-validation on 3 folds"
    assert table.cells.to_dict("list") == {
        "Method": ["lora", "prefix-propagation", "prefix-propagation"],
        "F1 micro, % ↑": ["40.0 ± 0.0", "60.0 ± 10.0", "80.0 ± 10.0"],
        "ECE ↓": ["0.040 ± 0.000", "0.060 ± 0.010", "0.080 ± 0.010"],
        "Learning rate": ["0.001", "0.0005", "0.01"],
        "Runs": ["3", "3", "3"],
    }
    assert table.notes[0].startswith("3 folds of the training set, seeds 1: ") and "not results" in table.notes[1]
    assert bold(table) == ["0.01"]
    assert bold(fold_table(runs, [a_run(0.7, learning_rate=5e-4)])) == ["0.0005"], "what was run on all documents"
    assert bold(fold_table(runs, [a_run(0.7, learning_rate=5e-4, keep="best")])) == ["0.01"]


def test_the_baseline_of_a_cross_validation_is_the_mean_over_folds(tmp_path: Path) -> None:
    for fold, baseline in ((0, 0.6), (1, 0.8)):
        for method in ("prefix-propagation", "lora"):
            add(tmp_path, baseline, fold=fold, folds=2, method=method)
    (table,) = tables_of(tmp_path).values()
    assert column(table, "Method") == ["lora", "prefix-propagation", TFIDF]
    assert column(table, "F1 micro, % ↑")[-1] == "70.0 ± 14.1" and column(table, "ECE ↓")[-1] == "0.010"

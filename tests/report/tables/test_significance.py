"""Whether one method is better than another: what the tables say, and what they refuse to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from prefixprop.evaluate import holm_correction, paired_bootstrap
from prefixprop.report import make_report
from prefixprop.report.choose.comparisons import compare
from prefixprop.report.tables.significance import baseline_pairs, significance_tables
from prefixprop.report.tables.table import Mark, Table
from prefixprop.runs.find import find_runs, read_run

from tiny_runs import finish_again, make_results

METHODS = {"prefix-propagation": 3.0, "prefix-tuning": 0.5, "lora": 2.0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method, skill in METHODS.items():
        for seed in (1, 2, 3):
            make_results(folder / f"{method}{seed}", skill=skill, seed=seed, method=method, documents=60)
    return folder


def tables_of(folder: Path, baseline: str = "prefix-tuning") -> dict[str, Table]:
    (comparison,) = compare(find_runs([folder]).runs)
    pairs = baseline_pairs(comparison, baseline)
    return {table.name: table for table in significance_tables(comparison, "x", pairs, baseline)}


def rows_of(table: Table) -> dict[tuple[str, ...], dict[str, Any]]:
    """The cells of every row by title, under the words that the row begins with."""
    found = {}
    for row in table.rows:
        key = tuple(cell.text for column, cell in zip(table.columns, row, strict=True) if column.is_text)
        found[key] = {column.title: cell for column, cell in zip(table.columns, row, strict=True)}
    return found


def seeds_of(folder: Path, method: str, split: str) -> list[float]:
    return [
        json.loads((folder / f"{method}{seed}" / "metrics.json").read_text())[split]["micro_f1"] for seed in (1, 2, 3)
    ]


def test_every_method_is_tested_against_the_baseline_over_seeds(runs: Path) -> None:
    rows = rows_of(tables_of(runs)["x-tests"])
    others = [method for method in METHODS if method != "prefix-tuning"]
    assert set(rows) == {(method, split) for method in others for split in ("dev", "test")}
    for split in ("dev", "test"):
        expected = {}
        for method in others:
            first, second = seeds_of(runs, method, split), seeds_of(runs, "prefix-tuning", split)
            expected[method] = stats.ttest_ind(first, second, alternative="greater").pvalue
            row = rows[method, split]
            assert row["p, Student's t"].value == pytest.approx(expected[method])
            assert row["n seeds"].text == "3 and 3"
        corrected = holm_correction(list(expected.values()))
        for method, p_value in zip(others, corrected, strict=True):
            cell = rows[method, split]["p, Student's t, Holm"]
            assert p_value is not None
            assert cell.value == pytest.approx(p_value)
            assert (cell.mark is Mark.BOLD) == (p_value < 0.05)


def test_seeds_and_documents_are_drawn_for_the_interval(runs: Path) -> None:
    rows = rows_of(tables_of(runs)["x-tests"])
    row = rows["prefix-propagation", "test"]
    right = {}
    for method in ("prefix-propagation", "prefix-tuning"):
        found = [read_run(runs / f"{method}{seed}").predictions("test") for seed in (1, 2, 3)]
        right[method] = [one.logits.argmax(axis=1) == one.known_labels for one in found]
    expected = paired_bootstrap(right["prefix-propagation"], right["prefix-tuning"])
    low, high = (100 * end for end in expected.interval)
    assert row["95 % interval"].text == f"{low:+.1f} to {high:+.1f}"
    assert row["Micro-F1 difference, points"].value == pytest.approx(100 * expected.difference)
    assert row["p, seeds and documents"].value == expected.p_value
    assert 0 < row["p, seeds and documents"].value <= row["p, seeds and documents, Holm"].value < 0.05


def test_all_pairs_are_two_sided_and_corrected(runs: Path) -> None:
    table = tables_of(runs)["x-tests-pairs"]
    rows = rows_of(table)
    assert len(rows) == 3, "on test alone"
    row = rows["prefix-propagation", "prefix-tuning", "test"]
    first, second = (seeds_of(runs, method, "test") for method in ("prefix-propagation", "prefix-tuning"))
    assert row["p, Welch's t"].value == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)
    assert row["p, Welch's t, Holm"].value >= row["p, Welch's t"].value
    assert "Two-sided" in table.notes[0]


def test_another_baseline_and_one_that_no_run_has(runs: Path) -> None:
    assert ("prefix-tuning", "dev") in rows_of(tables_of(runs, "lora")["x-tests"])
    assert set(tables_of(runs, "head-only")) == {"x-tests-pairs"}


def test_too_few_seeds_are_told_and_have_no_p_value(tmp_path: Path) -> None:
    make_results(tmp_path / "a", seed=1, documents=60)
    make_results(tmp_path / "b", seed=1, method="prefix-tuning", skill=0.5, documents=60)
    tables = tables_of(tmp_path)
    row = rows_of(tables["x-tests"])["prefix-propagation", "test"]
    assert "p, Student's t" not in row
    assert row["Micro-F1 difference, points"].value is not None
    reason = tables["x-tests"].notes[-1]
    assert reason.startswith("No p-value over seeds for prefix-propagation and prefix-tuning on test; ")
    assert "too few seeds: a t-test needs 2 of each" in reason
    assert row["p, seeds and documents"].value is not None, "over documents alone"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_text(path.read_text().replace('"d7"', '"other"')), "judged on different documents"),
        (lambda path: path.unlink(), "has no predictions of test"),
    ],
)
def test_runs_without_the_same_documents_have_no_paired_test(tmp_path: Path, damage: Any, reason: str) -> None:
    make_results(tmp_path / "a", seed=1)
    make_results(tmp_path / "b", seed=1, method="prefix-tuning")
    damage(tmp_path / "b" / "predictions" / "test.jsonl")
    finish_again(tmp_path / "b")
    table = tables_of(tmp_path)["x-tests"]
    rows = rows_of(table)
    assert rows["prefix-propagation", "test"]["p, seeds and documents"].value is None
    assert rows["prefix-propagation", "dev"]["p, seeds and documents"].value is not None
    assert any(note.startswith("No bootstrap for prefix-propagation") and reason in note for note in table.notes)


def test_methods_on_different_models_are_not_tested_against_each_other(tmp_path: Path) -> None:
    make_results(tmp_path / "a", seed=1)
    make_results(tmp_path / "b", seed=1, method="prefix-tuning", model="roberta-mini-512")
    assert tables_of(tmp_path) == {}


def test_an_unknown_baseline_or_split_is_refused(runs: Path) -> None:
    with pytest.raises(ValueError, match="--baseline 'prefix' is unknown; choose one of prefix-propagation"):
        make_report([runs], baseline="prefix")
    with pytest.raises(ValueError, match="--split 'train' is unknown; choose one of dev, test"):
        make_report([runs], split="train")

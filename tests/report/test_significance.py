"""Whether one method is better than another: in sentences, in the table, and what both refuse to say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from prefixprop.evaluate import holm_correction, paired_bootstrap
from prefixprop.report.choose import compare
from prefixprop.report.significance import baseline_pairs, findings, significance_table
from prefixprop.report.table import BOLD, Table
from prefixprop.runs.find import find_runs, read_run

from tiny_runs import finish_again, make_results

METHODS = {"prefix-propagation": 3.0, "prefix-tuning": 0.5, "lora": 2.0}
STUDENT, BOTH = "p, Student's t", "p, seeds and documents"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method, skill in METHODS.items():
        for seed in (1, 2, 3):
            make_results(folder / f"{method}{seed}", skill=skill, seed=seed, method=method, documents=60)
    return folder


def outcome(folder: Path, baseline: str = "prefix-tuning") -> tuple[Table | None, list[str]]:
    (comparison,) = compare(find_runs([folder]).runs)
    pairs = baseline_pairs(comparison, baseline)
    table = significance_table(comparison, pairs, "x", baseline) if pairs else None
    return table, findings(comparison, pairs)


def rows_of(table: Table | None) -> dict[str, dict[str, Any]]:
    assert table is not None
    cells = table.cells.to_dict("records")
    marks = table.all_marks.to_dict("records")
    return {
        row["Method"]: row | {"bold": {heading for heading, mark in of_row.items() if mark == BOLD}}
        for row, of_row in zip(cells, marks, strict=True)
    }


def right(folder: Path, method: str) -> list[Any]:
    found = [read_run(folder / f"{method}{seed}").predictions("test") for seed in (1, 2, 3)]
    return [one.logits.argmax(axis=1) == one.known_labels for one in found]


def test_every_method_is_tested_against_the_baseline(runs: Path) -> None:
    rows, others = rows_of(outcome(runs)[0]), [method for method in METHODS if method != "prefix-tuning"]
    assert set(rows) == set(others)
    tests: dict[str, list[Any]] = {STUDENT: [], BOTH: []}
    for method in others:
        first, second = right(runs, method), right(runs, "prefix-tuning")
        seeds = [[one.mean() for one in found] for found in (first, second)]
        tests[STUDENT].append(stats.ttest_ind(*seeds).pvalue)
        both = paired_bootstrap(first, second)
        tests[BOTH].append(both.p_value)
        low, high = (100 * end for end in both.interval)
        row = rows[method]
        assert row["95 % interval"] == f"{low:+.1f} to {high:+.1f}" and row["n seeds"] == "3 and 3"
        assert row["F1 micro difference, points"] == f"{100 * both.difference:+.1f}"
    for heading, values in tests.items():
        for method, value, corrected in zip(others, values, holm_correction(values), strict=True):
            row = rows[method]
            assert row[heading] == ("< 0.001" if value < 0.001 else f"{value:.3f}")
            assert (heading in row["bold"]) == (corrected < 0.05)


def test_the_papers_question_is_answered_in_words_and_by_two_tests(runs: Path) -> None:
    table, (best, compared) = outcome(runs)
    row = rows_of(table)["prefix-propagation"]
    assert best.startswith("Best on the test set: prefix-propagation, 9")
    assert "% F1 micro (95 % interval over 3 seeds" in best
    points = row["F1 micro difference, points"].removeprefix("+")
    assert compared.startswith(f"Prefix-propagation is {points} points ahead of prefix-tuning on the test set: 9")
    interval = row["95 % interval"]
    assert f"That is hardly chance: with other seeds and documents it could be {interval} points (95 %" in compared
    assert "a bootstrap over seeds and documents, two-sided p < 0.001)." in compared
    assert compared.endswith("Student's t over seeds alone, the paper's test: two-sided p < 0.001.")


def test_another_baseline_and_one_that_no_run_has(runs: Path) -> None:
    assert "prefix-tuning" in rows_of(outcome(runs, "lora")[0])
    assert outcome(runs, "head-only")[0] is None


def add(folder: Path, seeds: int, tuning: float = 0.5, model: str | None = None) -> None:
    other = {} if model is None else {"model": model}
    for seed in range(seeds):
        make_results(folder / f"propagation{seed}", skill=2.5, seed=seed)
        make_results(folder / f"tuning{seed}", skill=tuning, seed=seed, method="prefix-tuning", **other)


def without_predictions(folder: Path) -> None:
    for run in folder.iterdir():
        shutil.rmtree(run / "predictions")
        finish_again(run)


def other_documents(folder: Path) -> None:
    file = folder / "tuning0" / "predictions" / "test.jsonl"
    file.write_text(file.read_text().replace('"d7"', '"other"'))
    finish_again(folder / "tuning0")


TOO_FEW = "No t-test for prefix-propagation: too few seeds"


@pytest.mark.parametrize(
    ("options", "damage", "told", "not_told", "note", "missing"),
    [
        ({"seeds": 2, "tuning": 2.4}, None, "That may be chance: ", "One seed", None, None),
        ({"seeds": 1}, None, "One seed says nothing about other seeds; train more.", "Student", TOO_FEW, STUDENT),
        ({"seeds": 1}, None, "with other documents it could be", "seeds and documents", None, STUDENT),
        (
            {"seeds": 2},
            without_predictions,
            "test: two-sided p = ",
            "interval of",
            "has no predictions of test",
            BOTH,
        ),
        ({"seeds": 1}, other_documents, "points ahead", "bootstrap", "judged on different documents", BOTH),
    ],
)
def test_what_is_not_known_is_not_said(
    tmp_path: Path, options: Any, damage: Any, told: str, not_told: str, note: str | None, missing: str | None
) -> None:
    add(tmp_path, **options)
    if damage is not None:
        damage(tmp_path)
    table, (_, compared) = outcome(tmp_path)
    assert told in compared and not_told not in compared
    assert table is not None
    assert note is None or any(note in one for one in table.notes)
    assert missing not in table.cells


def test_methods_on_different_models_are_not_tested_against_each_other(tmp_path: Path) -> None:
    add(tmp_path, seeds=1, model="roberta-mini-512")
    table, (best,) = outcome(tmp_path)
    assert table is None and best.startswith("Best on the test set: prefix-propagation, longformer-mini-4096, ")


def test_a_row_is_tested_against_the_baseline_with_the_most_similar_settings(tmp_path: Path) -> None:
    """TF-IDF, which has no model, against that of every model."""
    other = {"model": "roberta-mini-512"}
    variants: list[dict[str, Any]] = [
        {}, {"max_length": 32}, {"method": "prefix-tuning"}, {"method": "prefix-tuning", "max_length": 32},
        {"kernel": "exp"}, other, other | {"method": "prefix-tuning"}, {"method": "tfidf"},
    ]  # fmt: skip
    for number, settings in enumerate(variants):
        make_results(tmp_path / str(number), **settings)

    def compared(baseline: str) -> list[tuple[str, str, str | None]]:
        (comparison,) = compare(find_runs([tmp_path]).runs)
        pairs = baseline_pairs(comparison, baseline)
        return sorted((pair.first.name, pair.second.name, pair.first.model or pair.second.model) for pair in pairs)

    first, second = "longformer-mini-4096", "roberta-mini-512"
    assert compared("prefix-propagation") == [
        ("prefix-propagation, exp kernel", "prefix-propagation", first),
        ("prefix-propagation, max length 32", "prefix-propagation", first),
        ("prefix-tuning", "prefix-propagation", first),
        ("prefix-tuning", "prefix-propagation", second),
        ("prefix-tuning, max length 32", "prefix-propagation, max length 32", first),
        ("tfidf", "prefix-propagation", first),
        ("tfidf", "prefix-propagation", second),
    ]
    assert {pair[1] for pair in compared("tfidf")} == {"tfidf"} and len(compared("tfidf")) == len(variants) - 1

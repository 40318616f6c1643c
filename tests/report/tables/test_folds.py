"""Tables of cross-validations: candidates, what was chosen, and settings compared fold by fold."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from prefixprop.choices import DEFAULT_MODEL
from prefixprop.report.choose.comparisons import compare
from prefixprop.report.tables.folds import fold_tables
from prefixprop.report.tables.table import Mark, Table
from prefixprop.runs.run import Run
from prefixprop.settings.resolve import resolve
from prefixprop.train import RunSettings


def a_run(score: float, fold: int | None = None, **settings: Any) -> Run:
    folds = None if fold is None else settings.pop("folds", 3)
    chosen = RunSettings(**({"task": "hyperpartisan", "keep": "last", "fold": fold, "folds": folds} | settings))
    dev = {"micro_f1": score, "accuracy": score, "ece": score / 10, "documents": 10 + (fold or 0)}
    return Run(Path("run"), resolve(chosen), {"dev": dev}, labels=("no", "yes"))


def on_folds(scores: Sequence[float], **settings: Any) -> list[Run]:
    return [a_run(score, fold, **settings) for fold, score in enumerate(scores)]


def column(table: Table, title: str) -> list[str]:
    (found,) = (one for one in table.columns if one.title == title)
    return [cell.text for cell in found.cells]


def marked(table: Table) -> list[tuple[str, ...]]:
    """The first cells of the rows that are marked somewhere."""
    rows = [row for row in table.rows if any(cell.mark is Mark.BOLD for cell in row)]
    return [tuple(cell.text for cell in row[:2]) for row in rows]


def test_every_candidate_has_its_mean_over_the_folds() -> None:
    runs = [
        *on_folds([0.8, 0.7, 0.9], learning_rate=1e-2),
        *on_folds([0.5, 0.6, 0.7], learning_rate=5e-4),
        *on_folds([0.4, 0.4, 0.4], method="lora", learning_rate=1e-3),
    ]
    (table,) = fold_tables(runs)
    assert table.title == "hyperpartisan, last epoch: cross-validation on train"
    assert [one.title for one in table.columns] == ["Method", "Learning rate", "F1 micro, %", "ECE", "Runs"]
    assert column(table, "Method") == ["lora", "prefix-propagation", "prefix-propagation"]
    assert column(table, "Learning rate") == ["0.001", "0.0005", "0.01"]
    assert column(table, "F1 micro, %") == ["40.0 ± 0.0", "60.0 ± 10.0", "80.0 ± 10.0"]
    assert column(table, "ECE") == ["0.040 ± 0.000", "0.060 ± 0.010", "0.080 ± 0.010"]
    assert column(table, "Runs") == ["3", "3", "3"]
    assert marked(table) == [("prefix-propagation", "0.01")]
    assert table.notes[0].startswith("3 folds of train, seed 1: every run leaves one fold out of its training")
    assert "they are not results. Bold: the chosen values" in table.notes[1]
    assert table.notes[2:] == [f"Model: {DEFAULT_MODEL}."]


def test_what_was_run_on_all_of_train_is_what_was_chosen() -> None:
    runs = [*on_folds([0.8, 0.8, 0.8], learning_rate=1e-2), *on_folds([0.5, 0.6, 0.7], learning_rate=5e-4)]
    comparisons = compare([*runs, a_run(0.7, learning_rate=5e-4)])
    assert marked(fold_tables(runs, comparisons)[0]) == [("prefix-propagation", "0.0005")]
    other = compare([*runs, a_run(0.7, learning_rate=5e-4, keep="best")])
    assert marked(fold_tables(runs, other)[0]) == [("prefix-propagation", "0.01")]


def test_settings_are_compared_with_the_defaults_by_fold_and_seed() -> None:
    default, other = [0.70, 0.80, 0.90], [0.73, 0.81, 0.92]
    runs = [
        *on_folds(other, layout="reference"),
        *on_folds(default),
        a_run(0.1, 0, seed=2, layout="reference"),  # without a partner: the others are of seed 1
        *on_folds([0.5, 0.5, 0.5], num_virtual_tokens=16),
        *on_folds([0.4, 0.4, 0.4], num_virtual_tokens=4),
        *on_folds([0.6, 0.6, 0.6], method="lora"),
    ]
    (table,) = fold_tables(runs)
    assert column(table, "Method") == [
        "lora", "prefix-propagation", "prefix-propagation, layout reference",
        "prefix-propagation, num virtual tokens 4", "prefix-propagation, num virtual tokens 16",
    ]  # fmt: skip
    found = column(table, "Difference, points (95 % interval)")
    low, high = stats.ttest_rel([100 * x for x in other], [100 * x for x in default]).confidence_interval(0.95)
    assert found[:3] == ["—", "reference", f"+2.0 ({low:+.1f} to {high:+.1f})"]
    assert found[3].startswith("-40.0 (") and found[4].startswith("-30.0 (")
    assert any("Folds share training documents, so the intervals are too narrow" in note for note in table.notes)
    assert marked(table) == []
    assert not any("Bold" in note for note in table.notes)


def test_the_reference_is_the_default_at_its_chosen_rate() -> None:
    runs = [
        *on_folds([0.6, 0.6, 0.6], learning_rate=5e-3),
        *on_folds([0.8, 0.8, 0.8], learning_rate=1e-2),
        *on_folds([0.7, 0.7, 0.7], learning_rate=5e-3, pooling="prefix"),
    ]
    (table,) = fold_tables(runs)
    cells = column(table, "Difference, points (95 % interval)")
    assert cells == ["-20.0 (-20.0 to -20.0)", "reference", "-10.0 (-10.0 to -10.0)"]


@pytest.mark.parametrize("seeds", [(1, 2), (2, 3, 5)])
def test_all_seeds_count(seeds: tuple[int, ...]) -> None:
    scores = {seed: [0.5 + 0.01 * seed, 0.6, 0.7] for seed in seeds}
    (table,) = fold_tables([run for seed in seeds for run in on_folds(scores[seed], seed=seed)])
    values = [100 * value for seed in seeds for value in scores[seed]]
    assert column(table, "F1 micro, %") == [f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"]
    assert f"seeds {', '.join(map(str, seeds))}:" in table.notes[0]

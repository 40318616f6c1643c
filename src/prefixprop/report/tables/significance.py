"""Tests of one method against another: every method against a baseline, and all pairs.

The paper asks whether prefix-propagation is better than prefix-tuning, by a one-tailed t-test over seeds (Results and
Discussion); so the default baseline is prefix-tuning. Beside it stands a bootstrap over seeds and documents, because
other documents would change a difference too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.evaluate import SignificanceTest, holm_correction, paired_bootstrap, paired_scores, t_test
from prefixprop.report.choose.comparisons import Comparison, Contender
from prefixprop.report.tables.table import (
    ABSENT,
    Cell,
    Column,
    Mark,
    Table,
    capitalised,
    plain_cell,
    range_cell,
    text_column,
    without_empty,
)
from prefixprop.settings.methods import BASELINE

SIGNIFICANT = 0.05
_FOLD = "Tests: which differences could be chance"
_SMALLEST_SHOWN = 0.001
_MOST_NAMED = 4  # pairs in a note
_HOLM = "Holm: corrected for the several methods compared on one split by one test"
_NO_PREDICTIONS = "No bootstrap: none of these runs has predictions; archive runs by their names to add them."
_BOLD = f"bold: below {SIGNIFICANT}"


@dataclass(frozen=True)
class Pair:
    """Two rows on one split; the question is whether the first is better than the second."""

    first: Contender
    second: Contender
    split: str

    def values(self, measure: str) -> tuple[list[float], list[float]]:
        """A measure of every seed of either row."""
        return self.first.best.values(self.split, measure), self.second.best.values(self.split, measure)

    def right(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Which documents every seed of either row gets right: [seeds, documents]; of those with predictions.

        `ValueError` where a row has none, or the runs were judged on different documents.
        """
        rows = [row.best.with_predictions(self.split) for row in (self.first, self.second)]
        reference = rows[0][0].predictions(self.split)
        first, second = (
            np.array([paired_scores(reference, run.predictions(self.split))[1] for run in runs]) for runs in rows
        )
        return first, second

    @cached_property
    def over_both(self) -> SignificanceTest:
        """The bootstrap over seeds and documents; without a p-value, but with the reason, where it cannot be."""
        try:
            return paired_bootstrap(*self.right())
        except (ValueError, OSError) as error:
            return SignificanceTest(float("nan"), None, str(error))


def baseline_pairs(comparison: Comparison, baseline: str = BASELINE) -> list[Pair]:
    """Every row against the baseline on the same model, where there is one, by split."""
    is_base = [_is_plain(row, baseline) for row in comparison.contenders]
    bases = [row for row, base in zip(comparison.contenders, is_base, strict=True) if base]
    others = [row for row, base in zip(comparison.contenders, is_base, strict=True) if not base]
    return [
        Pair(row, base, split)
        for split in reversed(comparison.splits)
        for base in bases
        for row in others
        if row.model == base.model
    ]


def _is_plain(row: Contender, method: str) -> bool:
    return row.best.settings.method == method and row.best.settings.kernel is None


def significance_tables(comparison: Comparison, name: str, against: Sequence[Pair], baseline: str) -> list[Table]:
    """The tables of a task, for every model that several methods were tried on; `against` are `baseline_pairs`."""
    tables: list[Table] = []
    by_model = {model: [row for row in comparison.contenders if row.model == model] for model in comparison.models}
    by_model = {model: rows for model, rows in by_model.items() if len(rows) > 1}
    for number, (model, rows) in enumerate(by_model.items(), start=1):
        several = len(by_model) > 1
        title = f"{comparison.title}, {model}" if several else comparison.title
        file = f"{name}-model{number}-tests" if several else f"{name}-tests"
        pairs = [pair for pair in against if pair.first.model == model]
        if pairs:
            tables.append(_against_baseline(comparison, pairs, f"{title}: better than {baseline}?", file))
        all_pairs = [Pair(*two, comparison.judged_on) for two in combinations(rows, 2)]
        if len(all_pairs) > 1 or not pairs:
            tables.append(_all_pairs(comparison, all_pairs, f"{title}: all pairs", f"{file}-pairs"))
    return tables


def _against_baseline(comparison: Comparison, pairs: Sequence[Pair], title: str, name: str) -> Table:
    metric = comparison.settings.metric
    student = [t_test(*pair.values(metric), "greater") for pair in pairs]
    both = [pair.over_both for pair in pairs]
    columns = [
        *_pair_columns(pairs),
        *_seed_columns(comparison, pairs, student),
        Column("95 % interval", [_interval(test) for test in both]),
        *_p_columns("seeds and documents", both, pairs),
        *_p_columns("Student's t", student, pairs),
    ]
    trials = [row.best for pair in pairs for row in (pair.first, pair.second)]
    kept = {run.has_predictions(split) for trial in trials for run in trial.runs for split in comparison.splits}
    notes = (
        f"One-tailed tests of {comparison.measure}. The interval and its p are from a bootstrap over seeds and "
        f"{comparison.items} both. Student's t, the paper's test, is over seeds alone. {_HOLM}; {_BOLD}.",
        *_problems("No p-value over seeds", pairs, student),
        *(_problems("No bootstrap", pairs, both) if any(kept) else [_NO_PREDICTIONS]),
        *(["The bootstrap leaves out runs that have no predictions."] if len(kept) > 1 else []),
    )
    return Table(name, title, without_empty(columns), notes, fold=_FOLD)


def _all_pairs(comparison: Comparison, pairs: Sequence[Pair], title: str, name: str) -> Table:
    values = [pair.values(comparison.settings.metric) for pair in pairs]
    welch = [t_test(*value, "two-sided", equal_variances=False) for value in values]
    columns = [
        *_pair_columns(pairs, both=True),
        *_seed_columns(comparison, pairs, welch),
        *_p_columns("Welch's t", welch, pairs),
    ]
    note = f"Two-sided t-tests of {comparison.measure} over seeds, by Welch. {_HOLM}; {_BOLD}."
    return Table(name, title, columns, (note, *_problems("No p-value over seeds", pairs, welch)), fold=_FOLD)


def _problems(start: str, pairs: Sequence[Pair], tests: Sequence[SignificanceTest]) -> list[str]:
    """Why there are no p-values: the same reason once, and of many pairs how many, for the table shows which."""
    by_reason: dict[str, list[str]] = {}
    for pair, test in zip(pairs, tests, strict=True):
        if test.reason is not None:
            named = f"{pair.first.method} and {pair.second.method} on {pair.split}"
            by_reason.setdefault(test.reason.rstrip("."), []).append(named)
    return [
        f"{start} for {'; '.join(named) if len(named) <= _MOST_NAMED else f'{len(named)} of these pairs'}: {reason}."
        for reason, named in by_reason.items()
    ]


def _pair_columns(pairs: Sequence[Pair], both: bool = False) -> list[Column]:
    columns = [text_column("Method", [pair.first.method for pair in pairs])]
    if both or len({pair.second.method for pair in pairs}) > 1:
        columns.append(text_column("Against", [pair.second.method for pair in pairs]))
    return [*columns, text_column("Split", [pair.split for pair in pairs])]


def _seed_columns(comparison: Comparison, pairs: Sequence[Pair], tests: Sequence[SignificanceTest]) -> list[Column]:
    counts = [tuple(map(len, pair.values(comparison.settings.metric))) for pair in pairs]
    title = f"{comparison.measure} difference, points"
    return [
        Column("n seeds", [_two(*count) for count in counts]),
        Column(capitalised(title), [plain_cell(100 * test.difference, 1, sign="+") for test in tests]),
    ]


def _p_columns(test: str, found: Sequence[SignificanceTest], pairs: Sequence[Pair]) -> list[Column]:
    """The p-values of a test, and where several methods are compared also the corrected ones."""
    values = [one.p_value for one in found]
    corrected: list[float | None] = []
    for split in dict.fromkeys(pair.split for pair in pairs):  # the pairs of a split stand together
        of_split = [value for value, pair in zip(values, pairs, strict=True) if pair.split == split]
        corrected += holm_correction(of_split)
    if corrected == values:
        return [Column(f"p, {test}", [_p_cell(value, may_be_bold=True) for value in values])]
    return [
        Column(f"p, {test}", [_p_cell(value, may_be_bold=False) for value in values]),
        Column(f"p, {test}, Holm", [_p_cell(value, may_be_bold=True) for value in corrected]),
    ]


def _p_cell(value: float | None, may_be_bold: bool) -> Cell:
    if value is None:
        return ABSENT
    return Cell(p_text(value), value, Mark.BOLD if may_be_bold and value < SIGNIFICANT else Mark.NONE)


def p_text(value: float) -> str:
    """A p-value in three digits."""
    return f"< {_SMALLEST_SHOWN}" if value < _SMALLEST_SHOWN else f"{value:.3f}"


def _interval(test: SignificanceTest) -> Cell:
    if test.interval is None:
        return ABSENT
    low, high = test.interval
    return range_cell(100 * low, 100 * high, decimals=1, sign="+")


def _two(first: int, second: int) -> Cell:
    return Cell(f"{first} and {second}", float(first))

"""Whether one method is better than another, in sentences and in a table.

The paper asks whether prefix-propagation is better than prefix-tuning, by a one-sided t-test over seeds (Results and
Discussion). Here both directions count. Next to the t-test there is a bootstrap over seeds and documents, because
other documents would change a difference too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from prefixprop.evaluate import SignificanceTest, holm_correction, paired_bootstrap, paired_scores, t_test
from prefixprop.evaluate.significance import summarise_seeds
from prefixprop.report.choose import Comparison, Row, grouped, set_name, stored_name
from prefixprop.report.results import headline
from prefixprop.report.table import BOLD, Table, capitalised, frame, interval_cell

PROPOSED = "prefix-propagation"  # by the paper
SHARES = ("accuracy", "micro_f1")  # metrics that are a share of documents, which the bootstrap draws
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Pair:
    """Two rows on one split; the question is whether the first is better than the second."""

    first: Row
    second: Row
    split: str

    @cached_property
    def over_seeds(self) -> SignificanceTest:
        """Student's t-test, the paper's."""
        metric = self.first.settings.metric
        return t_test(self.first.values(self.split, metric), self.second.values(self.split, metric), "two-sided")

    @cached_property
    def over_both(self) -> SignificanceTest:
        """The bootstrap over seeds and documents; without a p-value, but with the reason, where it cannot be."""
        stored = stored_name(self.split)
        try:
            rows = [row.with_predictions(self.split) for row in (self.first, self.second)]
            reference = rows[0][0].predictions(stored)
            right = [[paired_scores(reference, run.predictions(stored))[1] for run in runs] for runs in rows]
            return paired_bootstrap(np.array(right[0]), np.array(right[1]))
        except (ValueError, OSError) as error:
            return SignificanceTest(float("nan"), None, str(error))


def baseline_pairs(comparison: Comparison, baseline: str) -> list[Pair]:
    """Every row against the baseline method on the same model, where there is one, with the most similar settings.

    Rows of the baseline with settings of their own, such as another length, are compared with the one that has none.
    """
    bases = [row for row in comparison.rows if row.settings.method == baseline and row.settings.kernel is None]
    pairs = []
    for row in comparison.rows:
        others = [base for base in bases if None in (row.model, base.model) or base.model == row.model]
        if row in bases:
            others = [base for base in others if base is not row and not base.own]
        for alike in grouped(others, lambda base: base.model).values():
            nearest = min(alike, key=lambda base: (row.differences(base), len(base.own)))
            pairs.append(Pair(row, nearest, comparison.judged_on))
    return pairs


def significance_table(comparison: Comparison, pairs: Sequence[Pair], name: str, baseline: str) -> Table:
    """The tests of these pairs."""
    tests = {"bootstrap": [pair.over_both for pair in pairs], "t-test": [pair.over_seeds for pair in pairs]}
    headings = {"bootstrap": "p, seeds and documents", "t-test": "p, Student's t"}
    difference = f"{headline(comparison.settings.metric).title.removesuffix(', %')} difference, points"
    rows = [
        {
            "Method": pair.first.name,
            "Against": pair.second.name,
            "Model": pair.first.model or pair.second.model,
            "n seeds": f"{len(pair.first.runs)} and {len(pair.second.runs)}",
            difference: f"{100 * pair.over_seeds.difference:+.1f}",
            "95 % interval": interval_cell(pair.over_both.interval, sign="+"),
            **{headings[test]: p_text(found[at].p_value) for test, found in tests.items()},
        }
        for at, pair in enumerate(pairs)
    ]
    marks = pd.DataFrame(index=range(len(pairs)), columns=list(headings.values()))
    notes = [
        f"Two-sided. The interval and its p are from a bootstrap over seeds and {comparison.items}; Student's t, "
        "the paper's test (there one-sided), is over seeds alone. Bold: below 0.05 after Holm's correction for the "
        "methods compared."
    ]
    for test, found in tests.items():
        for at, p_value in enumerate(holm_correction([one.p_value for one in found])):
            if p_value is not None and p_value < SIGNIFICANT:
                marks.loc[at, headings[test]] = BOLD
        without = [(pair, one.reason.rstrip(".")) for pair, one in zip(pairs, found, strict=True) if one.reason]
        for reason, missing in grouped(without, lambda one: one[1]).items():
            names = "; ".join(dict.fromkeys(pair.first.name for pair, _ in missing))
            notes.append(f"No {test} for {names}: {reason}.")
    if comparison.settings.metric not in SHARES:
        notes.append("The bootstrap compares the share of right answers or, with several labels, F1 by document.")
    title, fold = f"{comparison.title}: better than {baseline}?", "Tests: which differences could be chance"
    return Table(name, title, frame(rows), notes, fold, marks)


def p_text(value: float | None, equals: str = "") -> str | None:
    return None if value is None else "< 0.001" if value < 0.001 else f"{equals}{value:.3f}"


def findings(comparison: Comparison, pairs: Sequence[Pair]) -> list[str]:
    """In sentences: the best method, and the paper's question; `pairs` are those with the baseline."""
    proposed = [pair for pair in pairs if pair.first.name == PROPOSED and not pair.second.own]
    return [_best(comparison), *(" ".join(_compared(comparison, pair)) for pair in proposed)]


def _best(comparison: Comparison) -> str:
    row, metric = comparison.rows[0], headline(comparison.settings.metric)
    summary = summarise_seeds(row.values(comparison.judged_on, metric.name))
    interval = interval_cell(summary.interval)
    spread = "one seed" if interval is None else f"95 % interval over {summary.count} seeds {interval}"
    score = f"{100 * summary.mean:.1f} % {metric.title.removesuffix(', %')} ({spread})"
    where = set_name(comparison.judged_on)
    if len(comparison.rows) == 1:
        return f"{capitalised(row.name)} reaches {score} on {where}."
    return f"Best on {where}: {comparison.name(row)}, {score}."


def _compared(comparison: Comparison, pair: Pair) -> Iterator[str]:
    points, both = round(100 * pair.over_seeds.difference, 1), pair.over_both
    standing = f"{abs(points):.1f} points {'ahead of' if points > 0 else 'behind'}" if points else "level with"
    first, second = (f"{100 * row.mean(pair.split):.1f} %" for row in (pair.first, pair.second))
    names = f"{capitalised(comparison.name(pair.first))} is {standing} {pair.second.name}"
    yield f"{names} on {set_name(pair.split)}: {first} against {second}."
    one_seed = any(len(row.runs) == 1 and row.model is not None for row in (pair.first, pair.second))
    if both.interval is not None and both.p_value is not None and comparison.settings.metric in SHARES:
        drawn = comparison.items if one_seed else f"seeds and {comparison.items}"
        chance = "may be chance" if both.interval[0] <= 0 <= both.interval[1] else "is hardly chance"
        yield (
            f"That {chance}: with other {drawn} it could be {interval_cell(both.interval, sign='+')} points (95 % "
            f"interval of a bootstrap over {drawn}, two-sided p {p_text(both.p_value, '= ')})."
        )
    if pair.over_seeds.p_value is not None:
        yield f"Student's t over seeds alone, the paper's test: two-sided p {p_text(pair.over_seeds.p_value, '= ')}."
    if one_seed:
        yield "One seed says nothing about other seeds; train more."

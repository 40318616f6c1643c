"""What a task's runs found, in sentences: the best method, and the paper's question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefixprop.evaluate import t_test
from prefixprop.evaluate.significance import summarise_seeds
from prefixprop.report.choose.comparisons import Comparison, Contender
from prefixprop.report.tables.significance import Pair, p_text
from prefixprop.report.tables.table import capitalised

# The method that the paper proposes.
PROPOSED = "prefix-propagation"


def findings(comparison: Comparison, against: Sequence[Pair]) -> list[str]:
    """The sentences; `against` are the pairs with the baseline."""
    main = [
        pair
        for pair in against
        # The name of a row with settings of its own is longer than its method's.
        if pair.first.method == PROPOSED
        and pair.second.method == pair.second.best.settings.method
        and pair.split == comparison.judged_on
    ]
    return [_best(comparison), *(" ".join(_compared(comparison, pair)) for pair in main)]


def _best(comparison: Comparison) -> str:
    """The best row comes first."""
    row, split = comparison.contenders[0], comparison.judged_on
    summary = summarise_seeds([100 * value for value in row.best.values(split, comparison.settings.metric)])
    spread = "one seed"
    if summary.interval is not None:
        low, high = summary.interval
        spread = f"95 % interval over {summary.count} seeds {low:.1f} to {high:.1f}"
    score = f"{summary.mean:.1f} % {comparison.measure}"
    if len(comparison.contenders) == 1:
        return f"{capitalised(row.method)} reaches {score} on {split} ({spread})."
    return f"Best on {split}{_model(comparison, row)}: {row.method}, {score} ({spread})."


def _model(comparison: Comparison, row: Contender) -> str:
    """With which model, where it is not the usual one."""
    return "" if row.model == comparison.usual_model else f", with the model {row.model}"


def _compared(comparison: Comparison, pair: Pair) -> Iterator[str]:
    metric = comparison.settings.metric
    student = t_test(*pair.values(metric), "greater")
    points = 100 * student.difference
    standing = f"{abs(points):.1f} points {'ahead of' if points > 0 else 'behind'}"
    if round(points, 1) == 0:
        standing = "level with"
    first, second = (100 * row.best.mean(pair.split, metric) for row in (pair.first, pair.second))
    yield (
        f"{capitalised(pair.first.method)} is {standing} {pair.second.method} on "
        f"{pair.split}{_model(comparison, pair.first)}: {first:.1f} % against {second:.1f} %."
    )
    seeds = min(len(row.best.runs) for row in (pair.first, pair.second))
    both = pair.over_both
    if both.interval is not None and both.p_value is not None:
        low, high = (100 * end for end in both.interval)
        drawn = f"seeds and {comparison.items}" if seeds > 1 else comparison.items
        chance = "may be chance" if low <= 0 <= high else "is hardly chance"
        yield (
            f"That {chance}: with other {drawn} it could be {low:+.1f} to {high:+.1f} points (95 % interval of a "
            f"bootstrap over {drawn}, one-tailed p {_equals(both.p_value)})."
        )
    if student.p_value is not None:
        yield f"Student's t over seeds alone, the paper's test: one-tailed p {_equals(student.p_value)}."
    if seeds == 1:
        yield "One seed says nothing about other seeds; train more."


def _equals(p_value: float) -> str:
    """`= 0.259` or `< 0.001`."""
    text = p_text(p_value)
    return text if text.startswith("<") else f"= {text}"

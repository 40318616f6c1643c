"""What a task's runs found, in sentences: the best method, and the paper's question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefixprop.evaluation import PairedBootstrap, t_test
from prefixprop.evaluation.significance import summarise_seeds
from prefixprop.reporting.choose.comparisons import Comparison, Contender
from prefixprop.reporting.tables.significance import Pair, p_text

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
        return f"{row.method.capitalize()} reaches {score} on {split} ({spread})."
    return f"Best on {split}{_model(comparison, row)}: {row.method}, {score} ({spread})."


def _model(comparison: Comparison, row: Contender) -> str:
    """With which model, where models differ."""
    return "" if len(comparison.models) == 1 else f", with the model {row.model}"


def _compared(comparison: Comparison, pair: Pair) -> Iterator[str]:
    metric = comparison.settings.metric
    student = t_test(*pair.values(metric), "greater")
    points = 100 * student.difference
    standing = f"{abs(points):.1f} points {'ahead of' if points > 0 else 'behind'}"
    if round(points, 1) == 0:
        standing = "level with"
    first, second = (100 * row.best.mean(pair.split, metric) for row in (pair.first, pair.second))
    yield (
        f"{pair.first.method.capitalize()} is {standing} {pair.second.method} on "
        f"{pair.split}{_model(comparison, pair.first)}: {first:.1f} % against {second:.1f} %."
    )
    seeds = min(len(row.best.runs) for row in (pair.first, pair.second))
    p_values = []
    both = pair.over_both
    if isinstance(both, PairedBootstrap) and both.p_value is not None:
        low, high = (100 * end for end in both.interval)
        drawn = f"seeds and {comparison.items}" if seeds > 1 else comparison.items
        chance = "may be chance" if low <= 0 <= high else "is hardly chance"
        reach = f"{low:+.1f} to {high:+.1f} points"
        yield f"With other {drawn} the difference could be {reach} (95 % interval), so this {chance}."
        p_values.append(f"over {drawn} {p_text(both.p_value)} (bootstrap)")
    if student.p_value is not None:
        p_values.append(f"over seeds alone {p_text(student.p_value)} (Student's t, the paper's test)")
    if p_values:
        yield f"One-tailed p: {', '.join(p_values)}."
    if seeds == 1:
        yield "One seed says nothing about other seeds; train more."

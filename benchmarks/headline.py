"""Is prefix-propagation ahead of prefix-tuning? What the published runs say, by each protocol.

    python benchmarks/headline.py

A row is a task and the documents that judge it: the difference between the mean accuracies (micro-F1, since every
document has one label) in points, and two one-tailed p-values. Student's t-test asks whether other seeds would agree.
The bootstrap asks whether other seeds and other documents would: it draws seeds of each method, and documents, the
same for both, and counts how often propagation is not ahead. Stouffer's method combines the p-values of the tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import combine_pvalues

from prefixprop.evaluate import paired_bootstrap, t_test
from prefixprop.report.choose.comparisons import Contender, compare
from prefixprop.report.tables.significance import Pair
from prefixprop.runs.find import find_runs

RESULTS = Path(__file__).parents[1] / "results"
# What chooses Hyperpartisan's learning rate; dev chooses that of 20-newsgroups either way.
PROTOCOLS = {
    "cross-validation chooses": ("hyperpartisan-clean", "newsgroups"),
    "dev chooses": ("hyperpartisan", "newsgroups"),
}
FIRST, SECOND = "prefix-propagation", "prefix-tuning"
SPLITS = ("test", "dev", "dev and test")


@dataclass(frozen=True)
class Evidence:
    """How far the first method is ahead, in points, and how probable that is without a real difference."""

    documents: int
    points: float
    over_seeds: float
    over_seeds_and_documents: float


@cache
def evidence(folder: str, splits: str) -> Evidence:
    """What the runs of a sweep say on the documents of these splits."""
    rows = _rows(folder)
    right = [Pair(rows[FIRST], rows[SECOND], split).right() for split in splits.split(" and ")]
    first, second = (np.concatenate(parts, axis=1) for parts in zip(*right, strict=True))
    over_seeds = t_test([*first.mean(axis=1)], [*second.mean(axis=1)]).p_value
    over_both = paired_bootstrap(first, second)
    assert over_seeds is not None and over_both.p_value is not None
    return Evidence(first.shape[1], 100 * over_both.difference, over_seeds, over_both.p_value)


def together(tasks: Sequence[Evidence]) -> tuple[float, ...]:
    """The p-values of several tasks combined: over seeds, and over seeds and documents."""
    p_values = zip(*((one.over_seeds, one.over_seeds_and_documents) for one in tasks), strict=True)
    return tuple(float(combine_pvalues(values, method="stouffer").pvalue) for values in p_values)


@cache
def _rows(folder: str) -> dict[str, Contender]:
    (comparison,) = compare(find_runs([RESULTS / folder]).runs)
    return {row.method: row for row in comparison.contenders if row.model == "embedded"}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for protocol, folders in PROTOCOLS.items():
        table = Table(title=f"{FIRST} minus {SECOND}: {protocol}", title_justify="left")
        for column in ("judged on", "task", "documents", "points", "p, seeds", "p, both"):
            table.add_column(column, justify="left" if column in ("judged on", "task") else "right", no_wrap=True)
        for splits in SPLITS:
            tasks = {folder: evidence(folder, splits) for folder in folders}
            for folder, one in tasks.items():
                p_values = f"{one.over_seeds:.3f}", f"{one.over_seeds_and_documents:.3f}"
                table.add_row(splits, folder, f"{one.documents:,}", f"{one.points:+.1f}", *p_values)
            combined = together([*tasks.values()])
            table.add_row(splits, "both tasks", "", "", *(f"{p:.3f}" for p in combined), end_section=True)
        Console().print(table)


if __name__ == "__main__":
    main()

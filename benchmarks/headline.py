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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import combine_pvalues

from prefixprop.evaluation import paired_scores, t_test
from prefixprop.reporting.choose.comparisons import Contender, compare
from prefixprop.runs.find import find_runs

RESULTS = Path(__file__).parents[1] / "results"
# What chooses Hyperpartisan's learning rate; dev chooses that of 20-newsgroups either way.
PROTOCOLS = {
    "cross-validation chooses": ("hyperpartisan-clean", "newsgroups"),
    "dev chooses": ("hyperpartisan", "newsgroups"),
}
FIRST, SECOND = "prefix-propagation", "prefix-tuning"
SPLITS = ("test", "dev", "dev and test")
RESAMPLES = 20_000


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
    first, second = (_right(rows[method], rows[FIRST], splits.split(" and ")) for method in (FIRST, SECOND))
    test = t_test([*first.mean(axis=1)], [*second.mean(axis=1)])
    assert test.p_value is not None
    return Evidence(first.shape[1], 100 * test.difference, test.p_value, seeds_and_documents(first, second))


def together(tasks: Sequence[Evidence]) -> tuple[float, ...]:
    """The p-values of several tasks combined: over seeds, and over seeds and documents."""
    p_values = zip(*((one.over_seeds, one.over_seeds_and_documents) for one in tasks), strict=True)
    return tuple(float(combine_pvalues(values, method="stouffer").pvalue) for values in p_values)


def seeds_and_documents(first: NDArray[Any], second: NDArray[Any], resamples: int = RESAMPLES) -> float:
    """The share of resamples in which the first is not ahead; both say which documents are right, [seeds, documents].

    As in `paired_bootstrap`, the sample itself counts as one of them.
    """
    generator = np.random.default_rng(0)
    # Documents that the same runs get right are drawn together: some hundred numbers per sample, not thousands.
    kinds, counts = np.unique(np.concatenate([first, second]), axis=1, return_counts=True)
    documents = _shares(generator, counts, resamples)
    one, other = (
        ((_shares(generator, np.ones(len(seeds)), resamples) @ seeds) * documents).sum(axis=1)
        for seeds in np.split(kinds, [len(first)])
    )
    # Sums of fractions leave a tie a rounding error away from zero.
    return (1 + int((one - other <= 1e-12).sum())) / (1 + resamples)


def _shares(generator: np.random.Generator, counts: NDArray[Any], samples: int) -> NDArray[Any]:
    """How much of each sample, drawn with replacement, every kind makes up: [samples, kinds]."""
    total = int(counts.sum())
    return generator.multinomial(total, counts / total, size=samples) / total


@cache
def _rows(folder: str) -> dict[str, Contender]:
    (comparison,) = compare(find_runs([RESULTS / folder]).runs)
    return {row.method: row for row in comparison.contenders if row.model == "embedded"}


def _right(row: Contender, reference: Contender, splits: Sequence[str]) -> NDArray[Any]:
    """Which documents each seed of a row gets right, in the reference's order: [seeds, documents]."""
    ordered = {split: reference.best.runs[0].predictions(split) for split in splits}
    right = [[paired_scores(ordered[split], run.predictions(split))[1] for run in row.best.runs] for split in splits]
    return np.concatenate(right, axis=1).astype(np.float64)


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

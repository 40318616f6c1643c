"""Whether one row of a table is really better than another: over its seeds, and over documents."""

from __future__ import annotations

from dataclasses import dataclass

from prefixprop.evaluation import (
    McNemarTest,
    PairedBootstrap,
    SignificanceTest,
    mcnemar_test,
    paired_bootstrap,
    paired_scores,
    t_test,
    welch_test,
)
from prefixprop.evaluation.significance import Alternative
from prefixprop.reporting.choose.comparisons import Contender
from prefixprop.runs.run import Run


@dataclass(frozen=True)
class Pair:
    """Two rows on one split; the question is whether the first is better than the second."""

    first: Contender
    second: Contender
    split: str


@dataclass(frozen=True)
class SeedTests:
    """What the seeds of two rows say; `seeds` are their numbers."""

    seeds: tuple[int, int]
    student: SignificanceTest
    welch: SignificanceTest


@dataclass(frozen=True)
class DocumentTests:
    """What two runs on the same documents say; `runs` are the two, `documents` is how many they share."""

    runs: tuple[Run, Run]
    documents: int
    bootstrap: PairedBootstrap
    mcnemar: McNemarTest


def seed_tests(pair: Pair, measure: str, alternative: Alternative) -> SeedTests:
    """Compare two rows by one number per seed; `ValueError` where a row has none at all."""
    first, second = (row.best.values(pair.split, measure) for row in (pair.first, pair.second))
    return SeedTests(
        (len(first), len(second)),
        t_test(first, second, alternative),
        welch_test(first, second, alternative),
    )


def document_tests(pair: Pair, alternative: Alternative) -> DocumentTests:
    """Compare one run of each row, by which documents it gets right; `ValueError` where documents differ or lack."""
    runs = _runs_of_one_seed(pair)
    first, second = paired_scores(*(run.predictions(pair.split) for run in runs))
    return DocumentTests(
        runs, len(first), paired_bootstrap(first, second, alternative), mcnemar_test(first, second, alternative)
    )


def _runs_of_one_seed(pair: Pair) -> tuple[Run, Run]:
    """The runs of the first seed that both rows have predictions of, otherwise the first of each."""
    first, second = (row.best.with_predictions(pair.split) for row in (pair.first, pair.second))
    by_seed = {run.settings.seed: run for run in second}
    for run in first:
        if run.settings.seed in by_seed:
            return run, by_seed[run.settings.seed]
    return first[0], second[0]

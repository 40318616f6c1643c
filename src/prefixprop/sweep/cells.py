"""A cell of a sweep: one row of the table that is compared, and the runs that it needs.

The order is the paper's (Appendix, Training): first the learning rate is chosen by the dev metric, then, with it, the
scale factor alpha of kernel variants; the seeds are run with both. Which runs a cell needs depends only on the scores
known so far, so an interrupted sweep continues from its run directories alone.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from prefixprop.settings.resolve import override, resolve
from prefixprop.settings.run_settings import SETTINGS, RunSettings

SEEDS_STAGE = "seeds"

Axes = dict[str, tuple[Any, ...]]  # settings and the values they take
Runs = dict[str, RunSettings]  # by name
Scores = Mapping[str, float | None]  # dev metrics by name of run; None for a run that failed


@dataclass(frozen=True, eq=False)
class Cell:
    """Settings that are compared with those of other cells.

    Attributes:
        name: Its name in tables.
        settings: Its settings, with the first value of every searched axis and the first seed.
        searched: The axes that are chosen by the dev metric, one after the other.
        seeds: The seeds that are run with the chosen values.
        judges: The runs that judge a candidate, as changes to its settings; by default one run with the first seed.
    """

    name: str
    settings: RunSettings
    searched: Axes
    seeds: tuple[int, ...]
    judges: tuple[Mapping[str, Any], ...] = ({},)

    @property
    def size(self) -> int:
        """How many runs the cell needs, if none fails.

        The candidate that one stage chooses is among those of the next, and a run that judged the chosen values on
        the dev set is not repeated for its seed.
        """
        choices = sum(len(values) - 1 for values in self.searched.values())
        if not choices:
            return len(self.seeds)
        shared = sum("fold" not in judge for judge in self.judges)
        return (choices + 1) * len(self.judges) + len(self.seeds) - shared


@dataclass(frozen=True)
class Candidate:
    """A value of a searched axis.

    Attributes:
        axis: The name of the axis.
        settings: The cell's settings with this value and with what was chosen before.
        runs: The runs that judge it.
        score: The mean of their scores; None while one is missing, or if one failed.
    """

    axis: str
    settings: RunSettings
    runs: Runs
    score: float | None

    @property
    def value(self) -> Any:
        return getattr(self.settings, self.axis)


@dataclass(frozen=True)
class CellProgress:
    """The progress of a cell.

    Attributes:
        requested: All runs that the cell has asked for so far, in order.
        stage: The axis that is being searched, or `SEEDS_STAGE`.
        candidates: All candidates so far.
        final: The runs of all seeds with the chosen values; empty during the search.
        stuck: Whether nothing can be chosen because every candidate of a stage has a failed run.
    """

    requested: Runs
    stage: str
    candidates: tuple[Candidate, ...] = ()
    final: Runs = field(default_factory=dict)
    stuck: bool = False


def cell_progress(cell: Cell, scores: Scores) -> CellProgress:
    """Which runs the cell needs, given the scores so far; of equal candidates the first in the list is chosen."""
    requested: Runs = {}
    known: list[Candidate] = []
    chosen = cell.settings
    for axis, values in cell.searched.items():
        if len(values) == 1:
            continue
        candidates = [_candidate(cell, override(chosen, {axis: value}), axis, scores) for value in values]
        known += candidates
        for candidate in candidates:
            requested |= candidate.runs
        succeeded = [candidate for candidate in candidates if candidate.score is not None]
        is_open = not all(name in scores for name in requested)
        if is_open or not succeeded:
            return CellProgress(requested, axis, tuple(known), stuck=not is_open)
        chosen = max(succeeded, key=lambda candidate: candidate.score or 0.0).settings
    final = _named(override(chosen, {"seed": seed}) for seed in cell.seeds)
    return CellProgress(requested | final, SEEDS_STAGE, tuple(known), final)


def _candidate(cell: Cell, settings: RunSettings, axis: str, scores: Scores) -> Candidate:
    runs = _named(override(settings, judge) for judge in cell.judges)
    found = [score for name in runs if (score := scores.get(name)) is not None]
    # The result of `fmean` does not depend on the order of the numbers, so that equal candidates stay equal.
    return Candidate(axis, settings, runs, statistics.fmean(found) if len(found) == len(runs) else None)


def _named(runs: Iterable[RunSettings]) -> Runs:
    return {run_name(run): run for run in runs}


@cache
def run_name(settings: RunSettings) -> str:
    """The name of a run's directory: its data and method, for people, and a hash of all that decides its outcome.

    Only what differs from the defaults is hashed, so that a new setting does not rename old runs.
    """
    resolved, defaults = resolve(settings), RunSettings()
    decisive = {
        name: getattr(resolved, name)
        for name, declared in SETTINGS.items()
        if not declared.resumable and getattr(resolved, name) != getattr(defaults, name)
    }
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return f"{settings.data_name}-{settings.method_row.name}-{digest[:12]}"

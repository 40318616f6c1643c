"""A cell of a sweep: one row of the table that is compared, with what is searched for it and its seeds.

The paper's order (Appendix, Training): the learning rate is chosen by the dev metric, with it the scale factor alpha
of kernel variants, and with both the seeds are run. Which runs a cell needs depends only on the scores known so far,
so an interrupted sweep needs nothing but its run directories to continue.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import SETTING_FIELDS, RunSettings

SEEDS_STAGE = "seeds"

# The settings of a run that judges a candidate, as far as they differ from the cell's.
Judge = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """A setting and the values it takes."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Cell:
    """Settings that are compared with those of other cells.

    Attributes:
        name: The name of the cell in tables.
        settings: The settings with the first value of every searched axis, and the first seed.
        searched: What is chosen by the dev metric, one axis after the other.
        seeds: The seeds that are run at the chosen values.
        judges: The runs that judge every candidate of a search; by default one run with the cell's settings, which
            have the first seed.
    """

    name: str
    settings: RunSettings
    searched: tuple[Axis, ...]
    seeds: tuple[int, ...]
    judges: tuple[Judge, ...] = ({},)

    @property
    def size(self) -> int:
        """How many runs the cell needs, if none fails.

        Every stage but the first has one candidate from the stage before, with all the runs that judged it; and a run
        that judged the chosen values is not repeated for its seed.
        """
        choices = sum(len(axis.values) - 1 for axis in self.searched)
        if not choices:
            return len(self.seeds)
        judging = {run_name(run) for run in _judging(self, self.settings)}
        final = {run_name(run) for run in _final(self, self.settings)}
        return choices * len(judging) + len(judging | final)


@dataclass(frozen=True)
class Candidate:
    """A value of a searched axis.

    Attributes:
        axis: The name of the axis.
        settings: The cell's settings with this value, and with what was chosen before.
        runs: The runs that judge it.
        score: The mean of their scores; None while some are missing, and forever if one of them failed.
    """

    axis: str
    settings: RunSettings
    runs: tuple[RunSettings, ...]
    score: float | None

    @property
    def value(self) -> Any:
        return getattr(self.settings, self.axis)


@dataclass(frozen=True)
class CellProgress:
    """The progress of a cell.

    Attributes:
        requested: All runs that the cell asks for, settled or not, in order.
        stage: The axis that is being searched, or `SEEDS_STAGE`.
        candidates: All candidates so far.
        final: The runs of all seeds at the chosen values; empty during the search.
        stuck: Whether every candidate of a stage has a failed run, so that nothing can be chosen.
    """

    requested: tuple[RunSettings, ...]
    stage: str
    candidates: tuple[Candidate, ...] = ()
    final: tuple[RunSettings, ...] = ()
    stuck: bool = False


# A run's score is its dev metric, or None if it failed.
Scores = Mapping[str, float | None]


def cell_progress(cell: Cell, scores: Scores) -> CellProgress:
    """What the cell needs, given the scores by name of run; of equal candidates the first in the list wins."""
    requested: dict[str, RunSettings] = {}
    known: list[Candidate] = []
    chosen = cell.settings
    for axis in cell.searched:
        if len(axis.values) == 1:
            continue
        candidates = [_candidate(cell, replace(chosen, **{axis.name: value}), axis, scores) for value in axis.values]
        known += candidates
        requested |= {run_name(run): run for candidate in candidates for run in candidate.runs}
        succeeded = [candidate for candidate in candidates if candidate.score is not None]
        is_open = not all(name in scores for name in requested)
        if is_open or not succeeded:
            return CellProgress(tuple(requested.values()), axis.name, tuple(known), stuck=not is_open)
        chosen = max(succeeded, key=lambda candidate: candidate.score or 0.0).settings
    final = _final(cell, chosen)
    requested |= {run_name(run): run for run in final}
    return CellProgress(tuple(requested.values()), SEEDS_STAGE, tuple(known), final)


def run_name(settings: RunSettings) -> str:
    """The name of a run's directory: its data and method, for people, and a hash of all that decides its outcome.

    Only what differs from the defaults is hashed, so a new setting changes no name. A default that changes must stay
    here as it was in version 0.3, or runs at the old and at the new default would have one name.
    """
    resolved, defaults = resolve(settings), RunSettings()
    decisive = {
        name: getattr(resolved, name)
        for name, declared in SETTING_FIELDS.items()
        if not declared.metadata["resumable"] and getattr(resolved, name) != getattr(defaults, name)
    }
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return f"{settings.data_name}-{settings.method_row.name}-{digest[:12]}"


def _judging(cell: Cell, settings: RunSettings) -> tuple[RunSettings, ...]:
    return tuple(replace(settings, **judge) for judge in cell.judges)


def _final(cell: Cell, settings: RunSettings) -> tuple[RunSettings, ...]:
    return tuple(replace(settings, seed=seed) for seed in cell.seeds)


def _candidate(cell: Cell, settings: RunSettings, axis: Axis, scores: Scores) -> Candidate:
    runs = _judging(cell, settings)
    found = [scores.get(run_name(run)) for run in runs]
    succeeded = [score for score in found if score is not None]
    # `fmean` does not depend on the order of its numbers, so that equals stay equal.
    score = statistics.fmean(succeeded) if len(succeeded) == len(runs) else None
    return Candidate(axis.name, settings, runs, score)

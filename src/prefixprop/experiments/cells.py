"""A cell of a sweep: one row of the table that is compared, with what is searched for it and its seeds.

The paper's order (Appendix, Training): the learning rate is chosen by the dev metric, with it the scale factor alpha
of kernel variants, and with both the seeds are run. Which runs a cell asks for is decided from the scores known so
far and nothing else, so a sweep that was interrupted needs no memory but its run directories.
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

# Settings of a run that judges a candidate, where they differ from the cell's.
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
        name: What the cell is called in tables.
        settings: The settings with the first value of every searched axis, and the first seed.
        searched: What is chosen by the dev metric, one axis after the other.
        seeds: The seeds that are run at the chosen values.
        judges: By which runs every candidate of a search is judged; one with the cell's own settings, which have the
            first seed, unless it is said otherwise.
    """

    name: str
    settings: RunSettings
    searched: tuple[Axis, ...]
    seeds: tuple[int, ...]
    judges: tuple[Judge, ...] = ({},)

    @property
    def size(self) -> int:
        """How many runs the cell needs, if none fails.

        Every stage but the first has one candidate from the stage before, with all the runs that judged it; and a
        run that judged what was chosen is not repeated where it is that of a seed.
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
        score: The mean of their scores; None while some are missing, and for good where one of them has failed.
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
    """How far a cell has come.

    Attributes:
        requested: All runs that the cell asks for, settled or not, in order.
        stage: The axis that is being searched, or `SEEDS_STAGE`.
        candidates: What has been, or is being, searched.
        final: The runs of all seeds at the chosen values; empty while the search goes on.
        stuck: Whether no candidate of a stage is without a failed run, so that nothing can be chosen.
    """

    requested: tuple[RunSettings, ...]
    stage: str
    candidates: tuple[Candidate, ...] = ()
    final: tuple[RunSettings, ...] = ()
    stuck: bool = False


# A run's score is its dev metric, or None where it has failed.
Scores = Mapping[str, float | None]


def cell_progress(cell: Cell, scores: Scores) -> CellProgress:
    """What the cell asks for, given the scores by name of run; among equals the value that is listed first wins."""
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
    """The name of a run's directory: its data and method, to read, and a hash of all that decides its outcome.

    Only what differs from the defaults is hashed, so that a setting added in a later version leaves old names alone.
    """
    resolved, defaults = resolve(settings), RunSettings()
    decisive = {
        name: getattr(resolved, name)
        for name, declared in SETTING_FIELDS.items()
        if not declared.metadata["resumable"] and getattr(resolved, name) != getattr(defaults, name)
    }
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return f"{settings.data_name}-{settings.method}-{digest[:12]}"


def _judging(cell: Cell, settings: RunSettings) -> tuple[RunSettings, ...]:
    return tuple(replace(settings, **judge) for judge in cell.judges)


def _final(cell: Cell, settings: RunSettings) -> tuple[RunSettings, ...]:
    return tuple(replace(settings, seed=seed) for seed in cell.seeds)


def _candidate(cell: Cell, settings: RunSettings, axis: Axis, scores: Scores) -> Candidate:
    runs = _judging(cell, settings)
    found = [scores.get(run_name(run)) for run in runs]
    succeeded = [score for score in found if score is not None]
    # `fmean` does not hang on the order of its numbers, so that equals stay equal.
    score = statistics.fmean(succeeded) if len(succeeded) == len(runs) else None
    return Candidate(axis.name, settings, runs, score)

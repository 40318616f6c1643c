"""A cell of a sweep: one row of the table that is compared, with what is searched for it and its seeds.

The paper's order (Appendix, Training): the learning rate is chosen by the dev metric, with it the scale factor alpha
of kernel variants, and with both the seeds are run. Which runs a cell asks for is decided from the scores known so
far and nothing else, so a sweep that was interrupted needs no memory but its run directories.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.training.paper import with_paper_defaults
from prefixprop.training.settings import SETTING_FIELDS, RunSettings

SEEDS_STAGE = "seeds"


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
        searched: What is chosen by the dev metric, one axis after the other, with the first seed.
        seeds: The seeds that are run at the chosen values.
    """

    name: str
    settings: RunSettings
    searched: tuple[Axis, ...]
    seeds: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many runs the cell needs; every stage has one of its runs from the stage before."""
        return len(self.seeds) + sum(len(axis.values) - 1 for axis in self.searched)


@dataclass(frozen=True)
class CellProgress:
    """How far a cell has come.

    Attributes:
        requested: All runs that the cell asks for, settled or not, in order.
        stage: The axis that is being searched, or `SEEDS_STAGE`.
        final: The runs of all seeds at the chosen values; empty while the search goes on.
        stuck: Whether every run of a stage has failed, so that nothing can be chosen.
    """

    requested: tuple[RunSettings, ...]
    stage: str
    final: tuple[RunSettings, ...] = ()
    stuck: bool = False


# A run's score is its dev metric, or None where it has failed.
Scores = Mapping[str, float | None]


def cell_progress(cell: Cell, scores: Scores) -> CellProgress:
    """What the cell asks for, given the scores by name of run; among equals the value that is listed first wins."""
    requested: dict[str, RunSettings] = {}
    chosen = cell.settings
    for axis in cell.searched:
        candidates = {run_name(run): run for run in (replace(chosen, **{axis.name: value}) for value in axis.values)}
        requested |= candidates
        if not all(name in scores for name in candidates):
            return CellProgress(tuple(requested.values()), axis.name)
        succeeded = {name: score for name in candidates if (score := scores[name]) is not None}
        if not succeeded:
            return CellProgress(tuple(requested.values()), axis.name, stuck=True)
        chosen = candidates[max(succeeded, key=lambda name: succeeded[name])]
    final = {run_name(run): run for run in (replace(chosen, seed=seed) for seed in cell.seeds)}
    requested |= final
    return CellProgress(tuple(requested.values()), SEEDS_STAGE, tuple(final.values()))


def run_name(settings: RunSettings) -> str:
    """The name of a run's directory: its data and method, to read, and a hash of all that decides its outcome.

    Only what differs from the defaults is hashed, so that a setting added in a later version leaves old names alone.
    """
    resolved, defaults = with_paper_defaults(settings), RunSettings()
    decisive = {
        name: getattr(resolved, name)
        for name, declared in SETTING_FIELDS.items()
        if not declared.metadata["resumable"] and getattr(resolved, name) != getattr(defaults, name)
    }
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return f"{settings.data_name}-{settings.method}-{digest[:12]}"

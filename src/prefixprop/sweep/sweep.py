"""The sweep itself: asks cells which runs they need, gives these to an engine, and records the outcomes.

A cell is one row of the table that is compared. The order of its runs is the paper's (Appendix, Training): first the
learning rate is chosen by the dev metric, then, with it, the scale factor alpha of kernel variants; the seeds are run
with both. Which runs a cell needs depends only on the scores known so far, so an interrupted sweep continues from its
run directories alone. A finished run is never computed again, and an unfinished one is resumed. A failed run is
reported, ignored in every choice, and tried again by the next sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import write_json
from prefixprop.data import fingerprint, load_data
from prefixprop.runs.archive import read_archive
from prefixprop.runs.directory import DOCUMENTS, RunDirectory
from prefixprop.runs.find import SUMMARY, Run
from prefixprop.settings.resolve import override, resolve
from prefixprop.settings.run_settings import SETTINGS, RunSettings
from prefixprop.sweep.engine import Engine, Job, JobEnd

LOGS = "logs"
_SECONDS_BETWEEN_LOOKS = 0.5
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
class SweepPlan:
    """Everything that a sweep compares."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def size(self) -> int:
        """How many runs the sweep needs, if none fails."""
        return sum(cell.size for cell in self.cells)


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


# --- what has come of the runs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """A run that has finished or failed: `score` is its dev `metric`, or None if it failed with `error`."""

    settings: RunSettings
    run_dir: Path
    score: float | None
    seconds: float | None
    error: str | None = None
    is_new: bool = True
    metric: str | None = None


@dataclass
class SweepState:
    """The state of a sweep, by names of runs; `record` adds outcomes."""

    plan: SweepPlan
    runs_dir: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict, init=False)
    running: dict[str, Job] = field(default_factory=dict, init=False)
    _looked_at: set[str] = field(default_factory=set, init=False)
    _progress: dict[Cell, CellProgress] = field(default_factory=dict, init=False)
    _documents: dict[tuple[tuple[str, Any], ...], str] = field(default_factory=dict, init=False)

    @cached_property
    def archived(self) -> dict[str, Run]:
        """Finished runs that are only in an archive here."""
        return read_archive(self.runs_dir)

    def record(self, outcomes: Mapping[str, Outcome]) -> None:
        for name, outcome in outcomes.items():
            self.running.pop(name, None)
            self.outcomes[name] = outcome
        for cell, progress in list(self._progress.items()):
            if not progress.requested.keys().isdisjoint(outcomes.keys()):
                del self._progress[cell]

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.values() if outcome.error is not None]

    def progress(self, cell: Cell) -> CellProgress:
        if cell not in self._progress:
            self._progress[cell] = cell_progress(cell, {name: one.score for name, one in self.outcomes.items()})
        return self._progress[cell]

    def requested(self) -> Runs:
        """All runs that any cell has asked for so far; cells may share some."""
        return {name: run for cell in self.plan.cells for name, run in self.progress(cell).requested.items()}

    def outcomes_of(self, names: Iterable[str]) -> list[Outcome]:
        """The outcomes of those runs that have one."""
        return [self.outcomes[name] for name in names if name in self.outcomes]

    def remaining(self, cell: Cell) -> int:
        """How many runs the cell still needs."""
        progress = self.progress(cell)
        return 0 if progress.stuck else max(0, cell.size - len(self.outcomes_of(progress.requested)))

    def seconds_left(self, slots: int) -> float | None:
        """An estimate from the runs so far; None without any."""
        known = [outcome.seconds for outcome in self.outcomes.values() if outcome.seconds is not None]
        return statistics.fmean(known) * sum(map(self.remaining, self.plan.cells)) / slots if known else None

    def has_same_documents(self, settings: RunSettings, name: str) -> bool:
        """Whether the files of a finished run have not changed since; named tasks never change."""
        if not settings.train_files:
            return True
        source = tuple(settings.source.items())
        if source not in self._documents:
            self._documents[source] = fingerprint(load_data(**settings.source))
        now = self._documents[source]
        if name in self.archived:
            return bool(self.archived[name].environment.get(DOCUMENTS, now) == now)
        return RunDirectory(self.runs_dir / name).has_documents(now)

    def metric_of(self, cell: Cell) -> str:
        """The dev metric of a cell's runs, which their documents may have decided."""
        outcomes = self.outcomes_of(self.progress(cell).requested)
        return next((run.metric for run in outcomes if run.metric), cell.settings.metric)

    def summary(self) -> dict[str, Any]:
        """What was chosen and the results, as written to `sweep.json`."""
        return {
            "plan": self.plan.name,
            "cells": [self._cell_summary(cell) for cell in self.plan.cells],
            "failed": {outcome.run_dir.name: outcome.error for outcome in self.failures},
        }

    def _cell_summary(self, cell: Cell) -> dict[str, Any]:
        progress = self.progress(cell)
        final = next(iter(progress.final.values()), None)
        return {
            "name": cell.name,
            "metric": self.metric_of(cell),
            "stage": progress.stage,
            "remaining": self.remaining(cell),
            "chosen": {} if final is None else {name: getattr(final, name) for name in cell.searched},
            "candidates": [
                {"setting": one.axis, "value": one.value, "mean": one.score, "runs": list(one.runs)}
                for one in progress.candidates
            ],
            "runs": {run.run_dir.name: run.score for run in self.outcomes_of(progress.requested)},
            "final_runs": list(progress.final),
        }


def settle_finished(state: SweepState) -> None:
    """Record every run that is already finished, and make the choices that depend on them."""
    while new := {name: run for name, run in state.requested().items() if name not in state._looked_at}:
        state._looked_at |= new.keys()
        state.record({name: outcome for name, run in new.items() if (outcome := _found(state, name, run))})


def _found(state: SweepState, name: str, settings: RunSettings) -> Outcome | None:
    """The outcome of a run that was finished before this sweep, if it was."""
    directory = RunDirectory(state.runs_dir / name)
    archived = state.archived.get(name)
    if archived is None and not directory.is_finished():
        return None
    if not state.has_same_documents(settings, name):
        raise ValueError(
            f"{directory.path} is a finished run with other documents than there are now, which cannot be compared "
            "with new ones; restore the documents, or choose another --runs-dir."
        )
    return _finished(settings, directory, False, archived)


def _finished(settings: RunSettings, directory: RunDirectory, is_new: bool, archived: Run | None = None) -> Outcome:
    """The outcome of a finished run, in its directory or an archive."""
    try:
        metrics = directory.read_metrics() if archived is None else archived.metrics
        # Its documents may have decided the metric.
        metric = (directory.read_settings() if archived is None else archived.settings).metric
    except (OSError, ValueError) as error:
        return Outcome(settings, directory.path, None, None, str(error), is_new)
    return Outcome(settings, directory.path, metrics["dev"][metric], metrics["seconds"], None, is_new, metric)


def run_sweep(
    plan: SweepPlan, runs_dir: Path, engine: Engine, watch: Callable[[SweepState], None] = lambda state: None
) -> SweepState:
    """Run what is missing and return the final state; `watch` is called whenever something may have changed.

    The choices and results so far are written at the end, also if the sweep is interrupted.
    """
    state = SweepState(plan, runs_dir)
    (runs_dir / LOGS).mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.closing(engine):
            _run_missing(state, engine, watch)
    finally:
        if state.outcomes:
            write_json(runs_dir / SUMMARY, state.summary())
    return state


def _run_missing(state: SweepState, engine: Engine, watch: Callable[[SweepState], None]) -> None:
    while True:
        settle_finished(state)
        requested = state.requested()
        missing = [name for name in requested if name not in state.outcomes and name not in state.running]
        for name in missing[: max(0, engine.slots - len(state.running))]:
            job = Job(requested[name], state.runs_dir / name, state.runs_dir / LOGS / f"{name}.log")
            state.running[name] = job
            engine.submit(job)
        watch(state)
        if not state.running:
            return
        ended = engine.collect(_SECONDS_BETWEEN_LOOKS)
        state.record({end.job.run_dir.name: _outcome(end) for end in ended})


def _outcome(end: JobEnd) -> Outcome:
    job = end.job
    if end.error is not None:
        return Outcome(job.settings, job.run_dir, None, None, end.error)
    return _finished(job.settings, RunDirectory(job.run_dir), True)

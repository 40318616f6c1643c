"""The sweep itself: asks cells which runs they need, gives these to an engine, and records the outcomes.

Run directories are all that is remembered. A finished one is never computed again, an unfinished one is resumed, and
a failed run is reported, left out of every choice and tried again by the next sweep.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import write_json
from prefixprop.runs.archive import read_archive
from prefixprop.runs.directory import DOCUMENTS, RunDirectory
from prefixprop.runs.find import SUMMARY
from prefixprop.runs.run import Run
from prefixprop.settings.documents import DATA_SETTINGS, fingerprint, load_whole_task
from prefixprop.settings.run_settings import RunSettings
from prefixprop.sweep.cells import Candidate, Cell, CellProgress, cell_progress, run_name
from prefixprop.sweep.engines.base import Engine, Job, JobEnd
from prefixprop.sweep.plan import SweepPlan

LOGS = "logs"
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class Outcome:
    """A run that has finished or failed: `score` is its metric on dev, None if it failed with `error`."""

    settings: RunSettings
    run_dir: Path
    score: float | None
    seconds: float | None
    error: str | None = None
    is_new: bool = True


@dataclass
class SweepState:
    """The state of a sweep, by names of runs."""

    plan: SweepPlan
    runs_dir: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    running: dict[str, Job] = field(default_factory=dict)
    _documents: dict[RunSettings, str] = field(default_factory=dict, init=False)

    @cached_property
    def archived(self) -> dict[str, Run]:
        """The finished runs of an archive in the folder."""
        return read_archive(self.runs_dir)

    def is_finished(self, name: str) -> bool:
        return name in self.archived or RunDirectory(self.runs_dir / name).is_finished()

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.values() if outcome.error is not None]

    def has_documents(self, settings: RunSettings, name: str) -> bool:
        """Whether the run's files have not changed since; named tasks never change."""
        if not settings.train_files:
            return True
        source = RunSettings(**{name: getattr(settings, name) for name in DATA_SETTINGS})
        if source not in self._documents:
            self._documents[source] = fingerprint(load_whole_task(source))
        now = self._documents[source]
        if name in self.archived:
            return bool(self.archived[name].environment.get(DOCUMENTS, now) == now)
        return RunDirectory(self.runs_dir / name).has_documents(now)

    def progress(self, cell: Cell) -> CellProgress:
        return cell_progress(cell, {name: outcome.score for name, outcome in self.outcomes.items()})

    def outcomes_of(self, runs: tuple[RunSettings, ...]) -> list[Outcome]:
        """The outcomes of those runs that have one."""
        names = [run_name(run) for run in runs]
        return [self.outcomes[name] for name in names if name in self.outcomes]

    def remaining(self, cell: Cell) -> int:
        """How many runs the cell still needs."""
        progress = self.progress(cell)
        return 0 if progress.stuck else max(0, cell.size - len(self.outcomes_of(progress.requested)))

    def seconds_left(self, slots: int) -> float | None:
        """An estimate from the runs of the same cell, or of all cells if it has none yet; None without any."""
        known = [outcome.seconds for outcome in self.outcomes.values() if outcome.seconds is not None]
        if not known:
            return None
        total = 0.0
        for cell in self.plan.cells:
            own = [run.seconds for run in self.outcomes_of(self.progress(cell).requested) if run.seconds is not None]
            total += self.remaining(cell) * _mean(own or known)
        return total / slots

    def summary(self) -> dict[str, Any]:
        """What was chosen and the results, as written to `sweep.json`."""
        return {
            "plan": self.plan.name,
            "cells": [self._cell_summary(cell) for cell in self.plan.cells],
            "failed": {outcome.run_dir.name: outcome.error for outcome in self.failures},
        }

    def _cell_summary(self, cell: Cell) -> dict[str, Any]:
        progress = self.progress(cell)
        final = progress.final[0] if progress.final else None
        return {
            "name": cell.name,
            "metric": cell.settings.metric,
            "stage": progress.stage,
            "remaining": self.remaining(cell),
            "chosen": {} if final is None else {axis.name: getattr(final, axis.name) for axis in cell.searched},
            "candidates": [self._candidate_summary(candidate) for candidate in progress.candidates],
            "runs": {run.run_dir.name: run.score for run in self.outcomes_of(progress.requested)},
            "final_runs": [run_name(run) for run in progress.final],
        }

    def _candidate_summary(self, candidate: Candidate) -> dict[str, Any]:
        """The mean needs all of the runs; a candidate with a failed run is out."""
        settled = self.outcomes_of(candidate.runs)
        return {
            "setting": candidate.axis,
            "value": candidate.value,
            "mean": candidate.score,
            "runs": len(candidate.runs),
            "finished": sum(outcome.error is None for outcome in settled),
            "failed": sum(outcome.error is not None for outcome in settled),
        }


def settle_finished(state: SweepState) -> None:
    """Record every run that is already finished, and make the choices that depend on them."""
    found = True
    while found:
        found = False
        for name, settings in _requested(state).items():
            if name not in state.outcomes and name not in state.running and state.is_finished(name):
                if not state.has_documents(settings, name):
                    raise ValueError(
                        f"{state.runs_dir / name} is a finished run with other documents than there are now, which "
                        "cannot be compared with new ones; restore the documents, or choose another --runs-dir."
                    )
                metrics = state.archived[name].metrics if name in state.archived else None
                state.outcomes[name] = _finished(settings, RunDirectory(state.runs_dir / name), False, metrics)
                found = True


def run_sweep(
    plan: SweepPlan, runs_dir: Path, engine: Engine, watch: Callable[[SweepState], None] = lambda state: None
) -> SweepState:
    """Run what is missing and return the final state; `watch` is called whenever something may have changed.

    What was chosen and what came out so far is written in the end, of a sweep that is stopped too.
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
        missing = {
            name: settings
            for name, settings in _requested(state).items()
            if name not in state.outcomes and name not in state.running
        }
        for name in list(missing)[: max(0, engine.slots - len(state.running))]:
            run_dir, log = state.runs_dir / name, state.runs_dir / LOGS / f"{name}.log"
            state.running[name] = Job(missing[name], run_dir, log)
            engine.submit(state.running[name])
        watch(state)
        if not state.running:
            return
        for end in engine.collect(_SECONDS_BETWEEN_LOOKS):
            del state.running[end.job.run_dir.name]
            state.outcomes[end.job.run_dir.name] = _outcome(end)


def _requested(state: SweepState) -> dict[str, RunSettings]:
    """All runs that any cell needs, by name: cells may share some."""
    return {run_name(run): run for cell in state.plan.cells for run in state.progress(cell).requested}


def _outcome(end: JobEnd) -> Outcome:
    job, directory = end.job, RunDirectory(end.job.run_dir)
    if end.error is not None:
        return Outcome(job.settings, job.run_dir, None, None, end.error)
    return _finished(job.settings, directory, True)


def _finished(
    settings: RunSettings, directory: RunDirectory, is_new: bool, metrics: dict[str, Any] | None = None
) -> Outcome:
    """The outcome of a finished run; its metrics are read from its directory unless given."""
    try:
        metrics = directory.read_metrics() if metrics is None else metrics
        score = float(metrics["dev"][settings.metric])
    except (OSError, ValueError) as error:
        return Outcome(settings, directory.path, None, None, str(error), is_new)
    except (KeyError, TypeError):
        error_text = f"{directory.metrics} has no {settings.metric} of dev; remove the file and sweep again."
        return Outcome(settings, directory.path, None, None, error_text, is_new)
    return Outcome(settings, directory.path, score, metrics.get("seconds"), None, is_new)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)

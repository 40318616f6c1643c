"""Finding and reading the run directories that a report is made of."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import is_temporary
from prefixprop.evaluation import PredictionSet, Temperature, read_predictions, stored_predictions
from prefixprop.prediction import run_files
from prefixprop.reporting.sweep_notes import read_failures, runs_that_only_chose
from prefixprop.tasks.json_lines import read_json_lines
from prefixprop.training import RunDirectory, RunSettings
from prefixprop.training.effect import reset, without_effect
from prefixprop.training.paper import with_paper_defaults
from prefixprop.training.run_directory import DOCUMENTS
from prefixprop.training.settings import SETTING_FIELDS

SPLITS = ("dev", "test")
# Where the documents lie differs between machines; which documents they are is told by their labels and number.
_PLACES = ("data_dir", "train_files", "dev_files", "test_files", "max_dev_documents", "max_test_documents")
DECISIVE_SETTINGS = tuple(
    name for name, declared in SETTING_FIELDS.items() if not declared.metadata["resumable"] and name not in _PLACES
)


@dataclass(frozen=True)
class Run:
    """A finished run, as its directory tells it."""

    path: Path
    settings: RunSettings
    metrics: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] | None = None
    only_chose: bool = False  # so says the sweep it belongs to

    def measure(self, part: str, name: str) -> float | None:
        """One number of `metrics.json`, such as `measure("test", "micro_f1")`; None where the run has no such one."""
        values = self.metrics.get(part)
        return as_number(values.get(name)) if isinstance(values, dict) else None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the run was evaluated on."""
        return tuple(split for split in SPLITS if self.measure(split, "accuracy") is not None)

    @property
    def documents(self) -> dict[str, int]:
        """How many documents it was evaluated on, by split."""
        return {split: int(self.measure(split, "documents") or 0) for split in self.splits}

    @property
    def identity_of_documents(self) -> tuple[Any, ...]:
        """What runs on the same documents have in common."""
        return self.names_of_files, self.fingerprint_of_files, self.labels, tuple(self.documents.items())

    @property
    def fingerprint_of_files(self) -> str | None:
        """What tells documents of one's own from others in files of the same names; None where it is not known."""
        return str(self.environment.get(DOCUMENTS)) if self.names_of_files and DOCUMENTS in self.environment else None

    @property
    def names_of_files(self) -> tuple[str, ...]:
        """Those of documents of one's own, without the folders they lie in."""
        settings = self.settings
        return tuple(Path(file).name for file in (*settings.train_files, *settings.dev_files, *settings.test_files))

    @property
    def made_by(self) -> str | None:
        """The version of prefixprop that made the run, where it is known."""
        packages = self.environment.get("packages")
        found = packages.get("prefixprop") if isinstance(packages, dict) else None
        return found if isinstance(found, str) else None

    @property
    def device(self) -> str:
        return str(self.environment.get("device") or "unknown")

    @cached_property
    def temperature(self) -> Temperature:
        return run_files.read_temperature(self.path)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens every train document has, as the model reads it; empty where the run did not say."""
        return run_files.read_lengths(self.path)

    def has_predictions(self, split: str) -> bool:
        """Whether the run kept what it said about the documents of a split; not all of an archive did."""
        return stored_predictions(RunDirectory(self.path).predictions(split)) is not None

    def predictions(self, split: str) -> PredictionSet:
        """What the run said about the documents of a split, uncalibrated; `ValueError` where it kept nothing."""
        if split not in self._read:
            path = stored_predictions(RunDirectory(self.path).predictions(split))
            if path is None:
                kept_elsewhere = self.environment.get(run_files.ARCHIVED) is True
                hint = "; archive the run by its name to add them" if kept_elsewhere else ""
                raise ValueError(f"{self.path} has no predictions of {split}{hint}.")
            self._read[split] = read_predictions(path)
        return self._read[split]

    @cached_property
    def _read(self) -> dict[str, PredictionSet]:
        """What was read before: tests and pictures ask for the same predictions."""
        return {}


@dataclass(frozen=True)
class FoundRuns:
    """The finished runs, and in a line each what was found besides: unfinished, damaged and repeated ones."""

    runs: tuple[Run, ...]
    remarks: tuple[str, ...]


def find_runs(paths: Iterable[str | Path]) -> FoundRuns:
    """Read all run directories at and below these paths; only a path that does not exist is an error.

    >>> found = find_runs(["runs"])
    >>> [run.settings.seed for run in found.runs]
    """
    runs: list[Run] = []
    remarks: list[str] = []
    failures: dict[Path, str] = {}
    chose: dict[Path, frozenset[str]] = {}
    for directory in run_directories(paths, failures):
        folder = directory.resolve().parent
        if folder not in chose:
            chose[folder] = runs_that_only_chose(folder)
        try:
            runs.append(replace(read_run(directory), only_chose=directory.resolve().name in chose[folder]))
        except (ValueError, OSError) as error:
            told = failures.pop(directory.resolve(), None)
            problem = str(error) if told is None else f"{directory}: the run failed in its sweep: {told}"
            remarks += [f"Left out: {line}" for line in problem.splitlines()]
    # A run of a sweep that failed at its very start has no directory.
    remarks += [f"Left out: {place}: the run failed in its sweep: {told}" for place, told in failures.items()]
    kept = _without_repetitions(runs, remarks)
    remarks += _version_remarks(kept)
    return FoundRuns(tuple(kept), tuple(remarks))


def read_run(directory: Path) -> Run:
    """Read one run directory; an unfinished or damaged one raises an error that names the file."""
    run_files.check_run(directory)
    files = RunDirectory(directory)
    environment = run_files.read_environment(directory)
    try:
        settings = files.read_settings()
    except ValueError as error:
        raise ValueError(f"{error}{_age(environment)}") from error
    run = Run(
        path=directory,
        # What has no effect makes no row of its own.
        settings=with_paper_defaults(reset(settings, without_effect(settings))),
        metrics=files.read_metrics(),
        environment=environment,
        history=tuple(read_json_lines(files.history)) if files.history.is_file() else (),
        labels=run_files.read_labels(directory) if files.labels.is_file() else None,
    )
    if "dev" not in run.splits:
        raise files.broken_metrics("the measures of dev are missing")
    return run


def as_number(value: Any) -> float | None:
    """The value as a float if it is a finite number, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def run_directories(paths: Iterable[str | Path], failures: dict[Path, str]) -> list[Path]:
    """All run directories at and below the paths, each once; `failures` gets what sweeps there say of failed runs."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: there is no such folder; give run directories or folders of them.")
        for folder, below, _ in os.walk(path):
            directory = Path(folder)
            if RunDirectory(directory).is_run():
                found.setdefault(directory.resolve(), directory)
                below.clear()  # a run has no runs inside, but may have many files
            failures |= read_failures(directory)
            # A killed process may have left half a run under a temporary name.
            below[:] = sorted(name for name in below if not is_temporary(name))
    return list(found.values())


def _without_repetitions(runs: Sequence[Run], remarks: list[str]) -> list[Run]:
    """The runs without those of the same settings and seed as another, which would count as a seed more."""
    first: dict[Any, Run] = {}
    for run in runs:
        decisive = tuple(getattr(run.settings, name) for name in DECISIVE_SETTINGS)
        same = first.setdefault((decisive, run.identity_of_documents), run)
        if same is not run:
            remarks.append(f"Left out: {run.path} has the settings and the seed of {same.path}, which is counted.")
    return list(first.values())


def _version_remarks(runs: Sequence[Run]) -> list[str]:
    """What a reader should know where the runs come from several versions of prefixprop."""
    made: dict[str, int] = {}
    for run in runs:
        name = run.made_by or "an unknown version"
        made[name] = made.get(name, 0) + 1
    if len(made) < 2:
        return []
    counted = ", ".join(f"{name} ({count})" for name, count in sorted(made.items()))
    return [f"The runs were made by several versions of prefixprop: {counted}; numbers may differ for that reason."]


def _age(environment: dict[str, Any]) -> str:
    packages = environment.get("packages")
    made, here = packages.get("prefixprop") if isinstance(packages, dict) else None, version("prefixprop")
    return f" The run was made by prefixprop {made}, this is {here}." if made not in (None, here) else ""

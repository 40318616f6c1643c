"""Finding finished runs: in run directories and archives, with what sweeps recorded about them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from prefixprop.data.rows import read_json_lines
from prefixprop.evaluate import PredictionSet, Temperature, read_predictions
from prefixprop.runs.directory import DOCUMENTS, RunDirectory
from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import SETTINGS, RunSettings

SUMMARY = "sweep.json"  # the notes of a sweep, beside its runs
SPLITS = ("dev", "test")
# These differ between machines; the labels and the number of documents say which documents they are.
_WHERE_DOCUMENTS_ARE = (
    "data_dir",
    "train_files",
    "dev_files",
    "test_files",
    "max_dev_documents",
    "max_test_documents",
)
DECISIVE_SETTINGS = tuple(
    name for name, declared in SETTINGS.items() if not declared.resumable and name not in _WHERE_DOCUMENTS_ARE
)


@dataclass(frozen=True)
class Run:
    """A finished run, in its directory or in an archive: its settings and its results."""

    path: Path
    settings: RunSettings
    metrics: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] | None = None
    search_only: bool = False  # its sweep used it to choose a value, and chose another
    read_predictions: Mapping[str, Callable[[], PredictionSet]] = field(default_factory=dict)  # by split
    read_lengths: Callable[[], tuple[int, ...]] = tuple

    def metric(self, part: str, name: str) -> float | None:
        """One number of `metrics.json`, such as `metric("test", "micro_f1")`; None if the run does not have it."""
        found: float | None = self.metrics.get(part, {}).get(name)
        return found

    def baseline(self, split: str, name: str) -> float | None:
        """A number of the linear model that was fitted on the run's documents; None if there is none."""
        found: float | None = self.metrics.get("baseline", {}).get(split, {}).get(name)
        return found

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the run was evaluated on."""
        return tuple(split for split in SPLITS if self.metric(split, "accuracy") is not None)

    @property
    def documents(self) -> dict[str, int]:
        """How many documents it was evaluated on, by split."""
        return {split: int(self.metric(split, "documents") or 0) for split in self.splits}

    @property
    def identity_of_documents(self) -> tuple[Any, ...]:
        """What runs on the same documents have in common."""
        return self.names_of_files, self.fingerprint_of_files, self.labels, tuple(self.documents.items())

    @property
    def fingerprint_of_files(self) -> str | None:
        """Distinguishes the user's documents from others, as in files of the same names; None if not known."""
        are_own = self.names_of_files or not self.settings.has_source
        return str(self.environment[DOCUMENTS]) if are_own and DOCUMENTS in self.environment else None

    @property
    def names_of_files(self) -> tuple[str, ...]:
        """The names of the user's own files, without their folders."""
        settings = self.settings
        return tuple(Path(file).name for file in (*settings.train_files, *settings.dev_files, *settings.test_files))

    @property
    def device(self) -> str:
        return str(self.environment.get("device") or "unknown")

    @property
    def temperature(self) -> Temperature | None:
        """The temperature fitted on dev; None if the metrics lack it."""
        return Temperature(self.metrics["temperature"]) if "temperature" in self.metrics else None

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each training document has, before it is cut; empty if the run did not store them."""
        return self.read_lengths()

    def has_predictions(self, split: str) -> bool:
        """Whether the predictions of a split are stored; an archive does not have them for all runs."""
        return split in self.read_predictions

    def predictions(self, split: str) -> PredictionSet:
        """The run's uncalibrated predictions of a split; `ValueError` if they are not stored."""
        if split not in self.read_predictions:
            raise ValueError(f"{self.path} has no predictions of {split}.")
        return self.read_predictions[split]()


@dataclass(frozen=True)
class FoundRuns:
    """The finished runs, and one remark for each of the others: unfinished, damaged and repeated runs."""

    runs: tuple[Run, ...]
    remarks: tuple[str, ...]


def find_runs(paths: Iterable[str | Path]) -> FoundRuns:
    """Read all runs at and below these paths; only a path that does not exist is an error.

    >>> found = find_runs(["runs"])
    >>> [run.settings.seed for run in found.runs]
    """
    from prefixprop.runs.archive import read_archive  # which makes runs, too

    runs: dict[Path, Run] = {}
    problems: dict[Path, str] = {}
    failures: dict[Path, str] = {}
    search_only = cache(_search_only_runs)
    for folder in _folders(paths):
        try:
            if folder.resolve() not in runs and RunDirectory(folder).is_run():
                runs[folder.resolve()] = read_run(folder)
            for run in read_archive(folder).values():
                runs.setdefault(run.path.resolve(), run)
        except (ValueError, OSError) as error:
            problems[folder.resolve()] = str(error)
        failures |= _failures(folder)
    # A sweep knows better than the files why a run has not finished; one that failed at its start has no directory.
    problems |= {
        path: f"{path}: the run failed in its sweep: {reason}"
        for path, reason in failures.items()
        if path not in runs
    }
    remarks = [f"Left out: {line}" for problem in problems.values() for line in problem.splitlines()]
    marked = [
        replace(run, search_only=True) if path.name in search_only(path.parent) else run for path, run in runs.items()
    ]
    distinct = _without_repetitions(marked, remarks)
    return FoundRuns(tuple(distinct), tuple(remarks))


def read_run(path: Path) -> Run:
    """Read one run directory; an unfinished or damaged one raises an error that names the file."""
    directory = RunDirectory(path)
    directory.check_finished()
    directory.check_intact(predictions=True)
    return Run(
        path=path,
        settings=resolve(directory.read_settings()),
        metrics=directory.read_metrics(),
        environment=directory.read_environment(),
        history=tuple(read_json_lines(directory.history)),
        labels=directory.read_labels() if directory.labels.is_file() else None,
        read_predictions={
            split: cache(partial(read_predictions, directory.predictions(split)))
            for split in SPLITS
            if directory.predictions(split).is_file()
        },
        read_lengths=directory.read_lengths,
    )


def _folders(paths: Iterable[str | Path]) -> Iterator[Path]:
    """The folders that may have runs or notes of a sweep: all at and below the paths, but none inside a run."""
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: there is no such folder; give run directories or folders of them.")
        for folder, below, _ in os.walk(path):
            yield Path(folder)
            if RunDirectory(Path(folder)).is_run():
                below.clear()
            # A killed process may have left half a run under a name of our own.
            below[:] = sorted(name for name in below if not name.startswith(".prefixprop-"))


def _without_repetitions(runs: Sequence[Run], remarks: list[str]) -> list[Run]:
    """The runs without repetitions of the same settings and seed, which would count as another seed."""
    first: dict[Any, Run] = {}
    repeated: list[str] = []
    for run in runs:
        decisive = tuple(getattr(run.settings, name) for name in DECISIVE_SETTINGS)
        same = first.setdefault((decisive, run.identity_of_documents), run)
        if same is not run:
            repeated.append(f"{run.path} has the settings and the seed of {same.path}, which is counted")
    if repeated:
        more = f"; likewise {len(repeated) - 1} more" if len(repeated) > 1 else ""
        remarks.append(f"Left out: {repeated[0]}{more}.")
    return list(first.values())


# --- what a sweep noted -------------------------------------------------------------------------------------------


def _failures(folder: Path) -> dict[Path, str]:
    """The runs that failed in the last sweep of this folder and have not finished since, with the reason for each."""
    reasons = {(folder / name).resolve(): reason for name, reason in _notes(folder).get("failed", {}).items()}
    return {path: " ".join(why.split()) for path, why in reasons.items() if not RunDirectory(path).is_finished()}


def _search_only_runs(folder: Path) -> frozenset[str]:
    """The names of the runs that the last sweep of this folder searched with, and did not choose."""
    cells = _notes(folder).get("cells", [])
    searched = {name for cell in cells for name in cell["runs"]}
    results = {name for cell in cells for name in cell["final_runs"] or cell["runs"]}  # all until some are chosen
    return frozenset(searched - results)


def _notes(folder: Path) -> dict[str, Any]:
    """Empty if no sweep has ended here, or its notes are damaged: they only explain what is left out anyway."""
    try:
        notes = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}

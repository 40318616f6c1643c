"""Finding and reading finished runs: in run directories, and in archives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import is_temporary
from prefixprop.data.rows import read_json_lines
from prefixprop.evaluate import PredictionSet, read_predictions
from prefixprop.runs.archive_file import ArchiveFiles, is_archive
from prefixprop.runs.directory import RunDirectory
from prefixprop.runs.run import DECISIVE_SETTINGS, Run
from prefixprop.runs.sweep_notes import read_failures, search_only_runs
from prefixprop.settings.recipe import override
from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import RunSettings


@dataclass(frozen=True)
class InDirectory:
    """What a run stores in its directory."""

    directory: RunDirectory
    remedy = ""

    def lengths(self) -> tuple[int, ...]:
        return self.directory.read_lengths()

    def has_predictions(self, split: str) -> bool:
        return self.directory.predictions(split).is_file()

    def predictions(self, split: str) -> PredictionSet:
        return read_predictions(self.directory.predictions(split))


@dataclass(frozen=True)
class InArchive:
    """What an archive stores of a run."""

    archive: ArchiveFiles
    name: str
    remedy = "; archive the run by its name to add them"

    def lengths(self) -> tuple[int, ...]:
        return self.archive.lengths(self.name)

    def has_predictions(self, split: str) -> bool:
        return self.archive.has_predictions(self.name, split)

    def predictions(self, split: str) -> PredictionSet:
        return self.archive.predictions(self.name, split)


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
    runs: list[Run] = []
    remarks: list[str] = []
    failures: dict[Path, str] = {}
    chose: dict[Path, frozenset[str]] = {}
    for path, read in readers_of_runs(paths, failures).items():
        if path.parent not in chose:
            chose[path.parent] = search_only_runs(path.parent)
        try:
            runs.append(replace(read(), search_only=path.name in chose[path.parent]))
        except (ValueError, OSError) as error:
            reason = failures.pop(path, None)
            problem = str(error) if reason is None else f"{path}: the run failed in its sweep: {reason}"
            remarks += [f"Left out: {line}" for line in problem.splitlines()]
    # A run of a sweep that failed at its very start has no directory.
    remarks += [f"Left out: {path}: the run failed in its sweep: {reason}" for path, reason in failures.items()]
    distinct = _without_repetitions(runs, remarks)
    return FoundRuns(tuple(distinct), tuple(remarks))


def readers_of_runs(
    paths: Iterable[str | Path], failures: dict[Path, str] | None = None
) -> dict[Path, Callable[[], Run]]:
    """A function that reads the run, for every run at and below the paths, by its path.

    `failures` gets the reasons that sweeps noted for failed runs. An archived run has the path of its old directory.
    """
    found: dict[Path, Callable[[], Run]] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: there is no such folder; give run directories or folders of them.")
        for folder, below, _ in os.walk(path):
            directory = Path(folder)
            if RunDirectory(directory).is_run():
                found.setdefault(directory.resolve(), partial(read_run, directory))
                below.clear()  # a run has no runs inside, but may have many files
            elif is_archive(directory):
                archive = ArchiveFiles.read(directory)
                for name in archive.lines:
                    found.setdefault((directory / name).resolve(), partial(read_archived_run, archive, name))
            if failures is not None:
                failures |= read_failures(directory)
            # A killed process may have left half a run under a temporary name.
            below[:] = sorted(name for name in below if not is_temporary(name))
    return found


def read_run(path: Path) -> Run:
    """Read one run directory; an unfinished or damaged one raises an error that names the file."""
    directory = RunDirectory(path)
    directory.check_finished()
    environment = directory.read_environment()
    try:
        settings = directory.read_settings()
    except ValueError as error:
        raise ValueError(f"{error}{_age(environment)}") from error
    run = Run(
        path=path,
        settings=resolve(settings),
        metrics=directory.read_metrics(),
        environment=environment,
        history=tuple(read_json_lines(directory.history)) if directory.history.is_file() else (),
        labels=directory.read_labels() if directory.labels.is_file() else None,
        storage=InDirectory(directory),
    )
    if "dev" not in run.splits:
        raise directory.broken_metrics("the measures of dev are missing")
    return run


def read_archived_run(archive: ArchiveFiles, name: str) -> Run:
    """One run of an archive."""
    line = archive.lines[name]
    return Run(
        path=archive.folder / name,
        settings=resolve(override(RunSettings(), line["settings"])),
        metrics=line["metrics"],
        environment=line["environment"],
        history=tuple(line["history"]),
        labels=tuple(line["labels"]) if line.get("labels") else None,
        storage=InArchive(archive, name),
    )


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


def _age(environment: dict[str, Any]) -> str:
    packages = environment.get("packages")
    made, here = packages.get("prefixprop") if isinstance(packages, dict) else None, version("prefixprop")
    return f" The run was made by prefixprop {made}, this is {here}." if made not in (None, here) else ""

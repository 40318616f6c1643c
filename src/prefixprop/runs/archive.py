"""Archives: finished runs without weights, small enough to keep and publish.

`prefixprop report` makes the same tables from an archive, and `prefixprop sweep` counts its runs as finished. See
`prefixprop.runs.archive_file` for its two files. In an archive

- logits are in half precision, with the predicted classes as they were;
- a run that only served to choose, on a fold of a cross-validation or at values that its sweep did not choose, has no
  predictions and no lengths of the train documents, because a report needs them only for results;
- paths of the machine are shortened to their last component.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import write_json
from prefixprop.runs.archive_file import ArchiveFiles
from prefixprop.runs.archived_paths import (
    command_without_folders,
    settings_without_folders,
    text_without_folders,
)
from prefixprop.runs.find import readers_of_runs
from prefixprop.runs.run import SPLITS, Run
from prefixprop.runs.sweep_notes import SUMMARY, search_only_runs
from prefixprop.settings.recipe import differences, override
from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import RunSettings


@dataclass
class ArchiveResult:
    """What happened to the runs: those added, those that got missing predictions, those already present, and a line
    for each that was skipped, with the reason."""

    added: list[Path] = field(default_factory=list)
    completed: list[Path] = field(default_factory=list)
    present: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    """A finished run; `was_named` if the user gave its own directory, not one above it."""

    run: Run
    path_in_archive: Path
    was_named: bool

    @property
    def is_result(self) -> bool:
        """Whether its predictions are archived; those of a run that was given by name are, whatever a sweep chose."""
        if self.run.settings.fold is not None:
            return False
        return self.was_named or self.run.path.name not in search_only_runs(self.run.path.parent)


def archive_runs(paths: Iterable[str | Path], output: str | Path) -> ArchiveResult:
    """Put the finished runs at and below the paths into `output`; originals are only read.

    A run keeps its name and its path below the given one, by which its sweep knows it. A run that the archive already
    has stays as it is, so a repeated call adds what is new; but a run that was archived without predictions, and has
    become a result of its sweep since, gets them. `ValueError` if there is nothing to archive.

    >>> archive_runs(["runs/hyperpartisan"], "results/hyperpartisan").added
    """
    given, output = [Path(path) for path in paths], Path(output)
    _check_output(given, output)
    result = ArchiveResult()
    found = _find(given, result)
    _check_models([one.run for one in found])
    by_folder: dict[Path, list[_Found]] = {}
    for one in found:
        by_folder.setdefault((output / one.path_in_archive).parent, []).append(one)
    for folder, together in by_folder.items():
        _archive(folder, together, result)
    _copy_summaries(found, output, result)
    if not (result.added or result.completed or result.present):
        searched = ", ".join(map(str, given))
        lines = [f"There is no finished run at or below {searched} that can be archived.", *result.skipped]
        raise ValueError("\n".join(lines))
    return result


def _check_output(given: list[Path], output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; give a folder.")
    for path in given:
        if output.resolve().is_relative_to(path.resolve()):
            raise ValueError(
                f"--output {output} is in {path}, where the archive would be taken for runs to archive; give a "
                "folder outside it."
            )


def _find(given: list[Path], result: ArchiveResult) -> list[_Found]:
    """The finished runs, each once."""
    found: dict[Path, _Found] = {}
    for root in given:
        for path, read in readers_of_runs([root]).items():
            if path in found:
                continue
            was_named = path == root.resolve()
            path_in_archive = Path(path.name) if was_named else path.relative_to(root.resolve())
            try:
                found[path] = _Found(read(), path_in_archive, was_named)
            except (ValueError, OSError) as error:
                result.skipped.append(str(error))
    return list(found.values())


def _check_models(runs: list[Run]) -> None:
    """Raise if models in several folders have one name: without the folders, a report would take them for one."""
    models: dict[str, str] = {}
    for run in runs:
        model, name = run.settings.model, settings_without_folders(run.settings).model
        if models.setdefault(name, model) != model:
            raise ValueError(
                f"The models {models[name]} and {model} would both be called {name} in an archive, which names no "
                "folders; archive their runs separately, each with another --output."
            )


def _archive(folder: Path, together: list[_Found], result: ArchiveResult) -> None:
    archive = ArchiveFiles.read(folder)
    before = len(result.added) + len(result.completed)
    for one in together:
        name = one.path_in_archive.name
        is_new, is_result = name not in archive.lines, one.is_result
        try:
            line = _line(one.run, name)
            if not is_new:
                _check_is_same(line, archive.lines[name], one.run.path)
                if not (is_result and _lacks_predictions(one.run, archive)):
                    result.present.append(folder / name)
                    continue
            predictions = {split: one.run.predictions(split) for split in SPLITS if one.run.has_predictions(split)}
            archive.add(line, predictions if is_result else {}, one.run.lengths if is_result else ())
            (result.added if is_new else result.completed).append(folder / name)
        except ValueError as error:  # of damaged predictions, among others
            result.skipped.append(str(error))
    if len(result.added) + len(result.completed) > before:
        archive.write()


def _line(run: Run, name: str) -> dict[str, Any]:
    """A line of the archive's table."""
    settings = asdict(settings_without_folders(run.settings))
    environment = dict(run.environment)
    if isinstance(command := environment.get("command"), str):
        environment["command"] = command_without_folders(command)
    labels = {} if run.labels is None else {"labels": list(run.labels)}
    line = {"name": name, "settings": settings, "metrics": run.metrics, "environment": environment}
    # As it is read back: JSON has lists where Python has tuples.
    as_read: dict[str, Any] = json.loads(json.dumps(line | labels | {"history": list(run.history)}))
    return as_read


def _check_is_same(line: dict[str, Any], archived: dict[str, Any], path: Path) -> None:
    settings = [resolve(override(RunSettings(), one["settings"])) for one in (archived, line)]
    changed = differences(*settings)
    if not changed and archived["metrics"] != line["metrics"]:
        changed = ["its results differ"]
    if changed:
        raise ValueError(
            f"{path}: the archive has another run of this name: {'; '.join(changed)}; choose another --output."
        )


def _lacks_predictions(run: Run, archive: ArchiveFiles) -> bool:
    """Whether the run has predictions that its archived form lacks."""
    return any(run.has_predictions(split) and not archive.has_predictions(run.path.name, split) for split in SPLITS)


def _copy_summaries(found: list[_Found], output: Path, result: ArchiveResult) -> None:
    """Copy the notes of sweeps, if the archive has none or has got new runs there."""
    folders = {one.run.path.parent: (output / one.path_in_archive).parent for one in found if not one.was_named}
    for folder, target in folders.items():
        source = folder / SUMMARY
        written = [*result.added, *result.completed]
        is_old = (target / SUMMARY).is_file() and not any(run.parent == target for run in written)
        if not source.is_file() or is_old:
            continue
        try:
            summary = json.loads(source.read_text(encoding="utf-8"))
            failed = summary["failed"]
            summary["failed"] = {name: text_without_folders(str(reason)) for name, reason in failed.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            result.skipped.append(f"{source}: the notes of the sweep are damaged ({error}); sweep again.")
            continue
        write_json(target / SUMMARY, summary)

"""Archives: copies of finished runs without weights, small enough to be kept and published.

An archived run is a run directory like any other, from which `prefixprop report` makes the same tables and which
`prefixprop sweep` takes as finished, but:

- what was trained, the tokenizer and the model card are not there;
- predictions are gzipped, with logits and probabilities rounded, and those of runs on folds of a cross-validation,
  which only choose, are left out;
- paths of the machine are shortened to their last component, and `environment.json` says that it is an archive.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import replacing_folder, write_json, write_text
from prefixprop.evaluation import read_predictions, stored_predictions, write_predictions
from prefixprop.experiments.sweep import SUMMARY
from prefixprop.prediction.run_files import ARCHIVED
from prefixprop.reporting.archived_paths import (
    command_without_folders,
    settings_without_folders,
    text_without_folders,
)
from prefixprop.reporting.protocol import is_on_fold
from prefixprop.reporting.runs import SPLITS, Run, read_run, run_directories
from prefixprop.training import RunDirectory, settings_to_yaml
from prefixprop.training.settings_file import differences

# Four decimals of a logit change a probability by less than 0.0001.
DECIMALS = 4


@dataclass
class ArchiveResult:
    """What became of the runs: the folders that are new in the archive, those left as they were, and in a line each
    what was skipped, with the reason."""

    added: list[Path] = field(default_factory=list)
    present: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    """A finished run with its place in the archive; `was_named` if its own directory was given, not one above it."""

    run: Run
    place: Path
    was_named: bool


def archive_runs(paths: Iterable[str | Path], output: str | Path) -> ArchiveResult:
    """Copy the finished runs at and below the paths to `output`; originals are only read.

    A run keeps its place below the path that it was found at, because its folder's name is what a sweep knows it by.
    One that `output` has already is left as it is, so a repeated call adds what is new. `ValueError` where there is
    nothing to archive.

    >>> archive_runs(["runs/hyperpartisan"], "results/hyperpartisan").added
    """
    given, output = [Path(path) for path in paths], Path(output)
    _check_output(given, output)
    result = ArchiveResult()
    found = _find(given, result)
    _check_models([one.run for one in found])
    for one in found:
        _archive(one.run, output / one.place, result)
    _copy_summaries(found, output, result)
    if not result.added and not result.present:
        places = ", ".join(map(str, given))
        lines = [f"There is no finished run at or below {places} that can be archived.", *result.skipped]
        raise ValueError("\n".join(lines))
    return result


def _check_output(given: list[Path], output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; give a folder.")
    for path in given:
        if output.resolve().is_relative_to(path.resolve()):
            raise ValueError(
                f"--output {output} is in {path}, where the archive would be taken for runs to archive; give a "
                "folder outside of it."
            )


def _find(given: list[Path], result: ArchiveResult) -> list[_Found]:
    """The finished runs, each once."""
    found: dict[Path, _Found] = {}
    for root in given:
        for directory in run_directories([root], {}):
            if directory.resolve() in found:
                continue
            was_named = directory == root
            place = Path(root.resolve().name) if was_named else directory.relative_to(root)
            try:
                found[directory.resolve()] = _Found(read_run(directory), place, was_named)
            except (ValueError, OSError) as error:
                result.skipped.append(str(error))
    return list(found.values())


def _check_models(runs: list[Run]) -> None:
    """Raise where models of one name lie in several folders: without these, a report would take them for one."""
    models: dict[str, str] = {}
    for run in runs:
        model, name = run.settings.model, settings_without_folders(run.settings).model
        if models.setdefault(name, model) != model:
            raise ValueError(
                f"The models {models[name]} and {model} would both be called {name} in an archive, which names no "
                "folders; archive their runs with an --output each."
            )


def _archive(run: Run, target: Path, result: ArchiveResult) -> None:
    try:
        if target.exists():
            _check_is_same(run, target)
            result.present.append(target)
            return
        with replacing_folder(target) as folder:
            _write(run, RunDirectory(folder))
        result.added.append(target)
    except ValueError as error:  # of damaged predictions, among others
        result.skipped.append(str(error))


def _check_is_same(run: Run, target: Path) -> None:
    archived = RunDirectory(target)
    if not (archived.is_run() and archived.is_finished()):
        raise ValueError(f"{run.path}: {target} is in the way, and is no finished run; remove it.")
    changed = differences(
        settings_without_folders(archived.read_settings()),
        settings_without_folders(RunDirectory(run.path).read_settings()),
    )
    if changed:
        raise ValueError(
            f"{run.path}: {target} is another run already: {'; '.join(changed)}; choose another --output."
        )


def _write(run: Run, archived: RunDirectory) -> None:
    original = RunDirectory(run.path)
    write_text(archived.config, settings_to_yaml(settings_without_folders(original.read_settings())))
    write_json(archived.environment, _environment(run.environment))
    for file in (original.metrics, original.history, original.labels, original.lengths, original.temperature):
        if file.is_file():
            shutil.copyfile(file, archived.path / file.name)
    if is_on_fold(run.settings):
        return
    for split in SPLITS:
        stored = stored_predictions(original.predictions(split))
        if stored is not None:
            name = archived.predictions(split)
            write_predictions(name.with_name(f"{name.name}.gz"), read_predictions(stored), DECIMALS)


def _environment(environment: dict[str, Any]) -> dict[str, Any]:
    shortened = dict(environment)
    if isinstance(command := environment.get("command"), str):
        shortened["command"] = command_without_folders(command)
    return shortened | {ARCHIVED: True}


def _copy_summaries(found: list[_Found], output: Path, result: ArchiveResult) -> None:
    """Copy what sweeps noted beside their runs, where the archive has none or has got new runs there."""
    folders = {one.run.path.parent: (output / one.place).parent for one in found if not one.was_named}
    for folder, target in folders.items():
        source = folder / SUMMARY
        is_old = (target / SUMMARY).is_file() and not any(added.parent == target for added in result.added)
        if not source.is_file() or is_old:
            continue
        try:
            summary = json.loads(source.read_text(encoding="utf-8"))
            failed = summary["failed"]
            summary["failed"] = {name: text_without_folders(str(told)) for name, told in failed.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            result.skipped.append(f"{source}: the notes of the sweep are damaged ({error}); sweep again.")
            continue
        write_json(target / SUMMARY, summary)

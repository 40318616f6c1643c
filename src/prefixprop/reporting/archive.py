"""Archives: copies of finished runs without weights, small enough to be kept and published.

An archived run is a run directory like any other, from which `prefixprop report` makes the same tables and which
`prefixprop sweep` takes as finished, but:

- what was trained, the tokenizer, the manifest and the model card are not there;
- predictions are in their compact form (`prefixprop.evaluation.prediction_file`), gzipped: rounded logits, of which
  the probabilities follow;
- a run that only served to choose, on a fold of a cross-validation or at values that its sweep did not choose, has no
  predictions and no lengths of the train documents, for a report needs them of results alone;
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
from prefixprop.evaluation import stored_predictions, write_compact_predictions
from prefixprop.experiments.sweep import SUMMARY
from prefixprop.prediction.run_files import ARCHIVED
from prefixprop.reporting.archived_paths import (
    command_without_folders,
    settings_without_folders,
    text_without_folders,
)
from prefixprop.reporting.protocol import is_on_fold
from prefixprop.reporting.runs import SPLITS, Run, read_run, run_directories
from prefixprop.reporting.sweep_notes import runs_that_only_chose
from prefixprop.training import RunDirectory, settings_to_yaml
from prefixprop.training.settings_file import differences

# Rounding moves a logit by up to 0.0005, hence the log-odds of a class by up to 0.001 and its probability by no more
# than 0.00025; what is predicted stays as it was.
DECIMALS = 3


@dataclass
class ArchiveResult:
    """What became of the runs: the folders that are new in the archive, those written anew with the predictions that
    they lacked, those left as they were, and in a line each what was skipped, with the reason."""

    added: list[Path] = field(default_factory=list)
    completed: list[Path] = field(default_factory=list)
    present: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    """A finished run with its place in the archive; `was_named` if its own directory was given, not one above it."""

    run: Run
    place: Path
    was_named: bool

    @property
    def is_result(self) -> bool:
        """Whether it keeps its predictions; a run that was asked for by its name does, whatever a sweep chose."""
        if is_on_fold(self.run.settings):
            return False
        return self.was_named or self.run.path.name not in runs_that_only_chose(self.run.path.parent)


def archive_runs(paths: Iterable[str | Path], output: str | Path) -> ArchiveResult:
    """Copy the finished runs at and below the paths to `output`; originals are only read.

    A run keeps its place below the path that it was found at, because its folder's name is what a sweep knows it by.
    One that `output` has already is left as it is, so a repeated call adds what is new; but one that is there without
    predictions, and has become a result of its sweep since, is written anew. `ValueError` where there is nothing to
    archive.

    >>> archive_runs(["runs/hyperpartisan"], "results/hyperpartisan").added
    """
    given, output = [Path(path) for path in paths], Path(output)
    _check_output(given, output)
    result = ArchiveResult()
    found = _find(given, result)
    _check_models([one.run for one in found])
    for one in found:
        _archive(one, output / one.place, result)
    _copy_summaries(found, output, result)
    if not (result.added or result.completed or result.present):
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


def _archive(found: _Found, target: Path, result: ArchiveResult) -> None:
    try:
        is_new, is_result = not target.exists(), found.is_result
        if not is_new:
            _check_is_same(found.run, target)
            if not (is_result and _lacks_predictions(found.run, target)):
                result.present.append(target)
                return
        with replacing_folder(target) as folder:
            _write(found.run, RunDirectory(folder), is_result)
        (result.added if is_new else result.completed).append(target)
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
    if not changed and archived.read_metrics() != run.metrics:
        changed = ["its results are others"]
    if changed:
        raise ValueError(
            f"{run.path}: {target} is another run already: {'; '.join(changed)}; choose another --output."
        )


def _lacks_predictions(run: Run, target: Path) -> bool:
    """Whether the run has predictions that its archived form has not."""
    return any(
        run.has_predictions(split) and stored_predictions(RunDirectory(target).predictions(split)) is None
        for split in SPLITS
    )


def _write(run: Run, archived: RunDirectory, is_result: bool) -> None:
    original = RunDirectory(run.path)
    write_text(archived.config, settings_to_yaml(settings_without_folders(original.read_settings())))
    write_json(archived.environment, _environment(run.environment))
    copied = [original.metrics, original.history, original.labels, original.temperature]
    for file in [*copied, original.lengths] if is_result else copied:
        if file.is_file():
            shutil.copyfile(file, archived.path / file.name)
    for split in SPLITS:
        if is_result and run.has_predictions(split):
            name = archived.predictions(split)
            write_compact_predictions(name.with_name(f"{name.name}.gz"), run.predictions(split), DECIMALS)


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
        written = [*result.added, *result.completed]
        is_old = (target / SUMMARY).is_file() and not any(run.parent == target for run in written)
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

"""One run, from settings to a finished run directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers import TrainerCallback

from prefixprop.data import ClassificationTask, fingerprint, load_data
from prefixprop.processes import is_main_process
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory
from prefixprop.runs.start import check_may_start, check_same_documents, check_same_settings
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.mixed_run import train_mix
from prefixprop.train.plan import RunPlan, plan
from prefixprop.train.results import RunResult, tidy_up
from prefixprop.train.single_run import train_single


def train(
    settings: RunSettings,
    run_dir: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    documents: ClassificationTask | None = None,
) -> RunResult:
    """Train, evaluate and calibrate one run into `run_dir`; under `accelerate launch` on several devices.

    An existing run is refused, unless it is to be resumed, which ends as if it had never stopped, or overwritten. A
    finished run that is resumed is returned as it is. If a step does not fit into the device's memory, the run goes
    on with fewer documents at once, which changes nothing but its speed. `documents` in memory take the place of a
    source of data in the settings.

    >>> result = train(RunSettings(task="hyperpartisan"), "runs/hyperpartisan")
    >>> result.metrics["test"]["micro_f1"]
    """
    if len(settings.label_column) > 1:
        columns = ", ".join(settings.label_column)
        raise SettingsError(
            [f"--label-column: a run has one, got {columns}; train_label_columns makes a run for each."]
        )
    progress = progress or Progress()
    directory = RunDirectory(Path(run_dir))
    check_may_start(directory, resume, overwrite)
    going_on = resume and directory.is_run()
    if going_on:
        settings = _kept(settings, directory.read_settings())
        if directory.is_finished():
            return _finished(settings, directory, progress)
    run = plan(settings, progress, documents=documents)
    if going_on:
        check_same_settings(directory, run.settings)
        check_same_documents(directory, run.documents)
    if run.settings.is_mix:
        (result,) = train_mix([run], [directory], overwrite, callbacks, progress)
        return result
    return train_single(run, directory, overwrite, callbacks, progress)


def train_label_columns(
    settings: RunSettings,
    run_dir: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> list[RunResult]:
    """Train readers for several label columns of the same documents in one pass: a run for each, in a folder each.

    >>> train_label_columns(RunSettings(train_files=("news.csv",), label_column=("topic", "tone")), "runs/news")
    """
    progress = progress or Progress()
    each = [replace(settings, label_column=(column,)) for column in settings.label_column]
    directories = [RunDirectory(Path(run_dir) / _folder_name(column)) for column in settings.label_column]
    for directory in directories:
        check_may_start(directory, resume, overwrite)
    if resume and all(directory.is_finished() for directory in directories):
        pairs = zip(each, directories, strict=True)
        return [train(one, directory.path, resume, progress=progress) for one, directory in pairs]
    runs: list[RunPlan] = []
    for one, directory in zip(each, directories, strict=True):
        going_on = resume and directory.is_run()
        one = _kept(one, directory.read_settings()) if going_on else one
        runs.append(plan(one, progress, runs[0] if runs else None))
        if going_on:
            check_same_settings(directory, runs[-1].settings)
            check_same_documents(directory, runs[-1].documents)
    if len({run.data.several_labels for run in runs}) > 1:
        problem = "in some columns a document has one label, and in others several; train them in two runs."
        raise SettingsError([f"--label-column: {problem}"])
    return train_mix(runs, directories, overwrite, callbacks, progress)


def _folder_name(column: str) -> str:
    """The folder of a label column's run: its name, without what folders cannot be called."""
    return re.sub(r"[^\w.-]+", "-", column).strip(".") or "label"


def _kept(settings: RunSettings, before: RunSettings) -> RunSettings:
    """A resumed run keeps what its documents and its model decided, whatever they would decide now."""
    return replace(
        settings,
        epochs=settings.epochs or before.epochs,
        batch_size=settings.batch_size or before.batch_size,
        max_length=settings.max_length or before.max_length,
        choose_by=settings.choose_by or before.choose_by,
        model_revision=settings.model_revision or before.model_revision,
    )


def _finished(settings: RunSettings, directory: RunDirectory, progress: Progress) -> RunResult:
    """What a finished run has to say when it is resumed."""
    if Path(settings.model).is_dir():
        settings = replace(settings, model=str(Path(settings.model).resolve()))
    check_same_settings(directory, resolve(settings))
    if settings.train_files:  # those of a named task do not change by themselves, and may be far away
        check_same_documents(directory, fingerprint(load_data(**settings.source)))
    if settings.keep_weights and not directory.read_settings().keep_weights:
        progress.note(f"{directory.path} has a finished run without its weights; --overwrite trains it again")
    if is_main_process():
        with directory.claimed():  # a kill may have come between the results and the tidying up
            tidy_up(directory)
    return RunResult(directory.path, directory.read_metrics())

"""One run, from settings to a finished run directory."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.integrations import get_available_reporting_integrations

from prefixprop.atomic_files import clear_leftovers, replacing_folder, write_json, write_text
from prefixprop.attention.backends import is_modern_gpu
from prefixprop.data import (
    Task,
    fingerprint,
    load_data,
    select_documents,
)
from prefixprop.evaluate import PredictionSet, fit_temperature, write_predictions
from prefixprop.models.base_model import BaseModel, load_base_model
from prefixprop.models.gpu import hold_frozen_in_bfloat16, without_cudnn
from prefixprop.processes import is_main_process, process_count
from prefixprop.progress import Progress
from prefixprop.runs.directory import DOCUMENTS, FINISHED, RunDirectory
from prefixprop.runs.start import (
    check_may_start,
    check_same_documents,
    check_same_settings,
    restore_replaced,
    start,
)
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.recipe import settings_to_yaml
from prefixprop.settings.resolve import check_settings, documents_at_once, resolve, unused_notes
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.callbacks import epoch_lines, is_exhausted, run_callbacks
from prefixprop.train.checkpoints import find_checkpoint
from prefixprop.train.environment import describe_environment
from prefixprop.train.errors import (
    StepTooLarge,
    TrainingError,
    building_remedy,
    explained_memory_errors,
    training_remedy,
)
from prefixprop.train.kinds import RunData, kind_of
from prefixprop.train.model_card import model_card
from prefixprop.train.trainable import build_trainable, save_trained
from prefixprop.train.trainer import RunTrainer, training_arguments
from prefixprop.tuners.counting import ParameterCount, count_parameters

FEW_STEPS = 10


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what its `metrics.json` says."""

    run_dir: Path
    metrics: dict[str, Any]


@dataclass(frozen=True)
class RunPlan:
    """What a run will do: its resolved settings, its documents and its model, before anything is trained."""

    settings: RunSettings
    base: BaseModel
    task: Task  # the documents that the run reads
    data: RunData
    parameters: ParameterCount
    documents: str  # fingerprint of the data set
    at_once: int  # documents that a device computes at once
    models: list[nn.Module]  # the model that was built to count its parameters; `take_model` uses it up

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.data.train_lengths) // self.settings.documents_per_step)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * (self.settings.epochs or 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before it starts."""
        if self.steps >= FEW_STEPS:
            return self.data.notes
        few = f"the run has {self.steps} step{'s' if self.steps > 1 else ''}, too few to learn much"
        return (*self.data.notes, f"{few}: give it more --epochs or documents, or a smaller --batch-size")

    def take_model(self) -> nn.Module:
        """A model for one attempt at training; the plan keeps no hold on it, so that its memory can be freed."""
        return self.models.pop() if self.models else _build(self.base, self.data, self.settings)

    def __str__(self) -> str:
        """The settings that matter most, in one line."""
        settings = self.settings
        documents = f"{len(self.data.train_lengths):,} documents of up to {settings.max_length:,} tokens"
        steps = f"{settings.epochs} × {self.steps_per_epoch:,} steps of {settings.batch_size} documents"
        rest = f"learning rate {settings.learning_rate:g}, seed {settings.seed}"
        return f"{settings.method} on {self.base.name}: {documents}, {steps}, {rest}"


def plan(settings: RunSettings, progress: Progress | None = None) -> RunPlan:
    """Check the settings, load data and model, and resolve what was left open; nothing is written."""
    progress = progress or Progress()
    check_settings(settings, process_count())
    _check_trackers(settings)
    notes = unused_notes(settings)
    progress.stage("loading the model")
    base = load_base_model(settings.model, settings.model_revision, settings.dropout, settings.attention_dropout)
    progress.stage("reading documents")
    whole = load_data(**settings.source)
    settings = resolve(settings, base.limit, len(whole.train))
    settings = replace(settings, model=base.name, model_revision=base.revision)
    task = select_documents(whole, **settings.selection)
    progress.stage("turning documents into tokens")
    data = kind_of(settings).encode(task, base.tokenizer, settings)
    data = replace(data, notes=(*notes, *data.notes))
    at_once = documents_at_once(settings, process_count())
    model = _build(base, data, settings)
    return RunPlan(settings, base, task, data, count_parameters(model), fingerprint(whole), at_once, [model])


def _build(base: BaseModel, data: RunData, settings: RunSettings) -> nn.Module:
    """A new model; its head and its prefix are drawn with the run's seed."""
    set_seed(settings.seed)
    with explained_memory_errors(building_remedy(settings)):
        return build_trainable(kind_of(settings).new_model(base, data.label_names, settings), settings)


def train(
    settings: RunSettings,
    run_dir: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> RunResult:
    """Train, evaluate and calibrate one run into `run_dir`; under `accelerate launch` on several devices.

    An existing run is refused, unless it is to be resumed, which ends as if it had never stopped, or overwritten. A
    finished run that is resumed is returned as it is. If a step does not fit into the device's memory, the run goes
    on with fewer documents at once, which changes nothing but its speed.

    >>> result = train(RunSettings(task="hyperpartisan"), "runs/hyperpartisan")
    >>> result.metrics["test"]["micro_f1"]
    """
    progress = progress or Progress()
    directory = RunDirectory(Path(run_dir))
    check_may_start(directory, resume, overwrite)
    going_on = resume and directory.is_run()
    if going_on:
        settings = _kept(settings, directory.read_settings())
        if directory.is_finished():
            return _finished(settings, directory, progress)
    run = plan(settings, progress)
    if going_on:
        check_same_settings(directory, run.settings)
        check_same_documents(directory, run.documents)
    arguments = _arguments(run, directory)
    # Every process has looked at the folder before the first one writes there.
    arguments.distributed_state.wait_for_everyone()
    with directory.claimed() if arguments.should_save else contextlib.nullcontext():
        try:
            baseline = _begin(run, directory, arguments, overwrite, progress)
            return RunResult(directory.path, _train(run, directory, arguments, baseline, callbacks, progress))
        except BaseException:
            if arguments.should_save:
                restore_replaced(directory)
            raise


def _kept(settings: RunSettings, before: RunSettings) -> RunSettings:
    """A resumed run keeps what its documents and its model decided, whatever they would decide now."""
    return replace(
        settings,
        epochs=settings.epochs or before.epochs,
        max_length=settings.max_length or before.max_length,
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
            _tidy_up(directory)
    return RunResult(directory.path, directory.read_metrics())


def _begin(
    run: RunPlan, directory: RunDirectory, arguments: TrainingArguments, overwrite: bool, progress: Progress
) -> dict[str, Any]:
    """Write the beginning of a run directory; return the metrics of the TF-IDF baseline, if there is to be one."""
    baseline: dict[str, Any] = {}
    if arguments.should_save:
        for note in run.notes:
            progress.note(note)
        start(directory, run.settings, overwrite)
        if run.data.label_names is not None:
            write_json(directory.labels, list(run.data.label_names))
        write_text(directory.lengths, json.dumps(list(run.data.train_lengths)) + "\n")  # a long list, on one line
        environment = describe_environment(run.settings.seed, arguments.device, process_count())
        write_json(directory.environment, environment | {DOCUMENTS: run.documents})
        progress.line(str(run))
        progress.stage("fitting the TF-IDF baseline")
        baseline = _baseline(run, progress)
    arguments.distributed_state.wait_for_everyone()
    return baseline


def _train(
    run: RunPlan,
    directory: RunDirectory,
    arguments: TrainingArguments,
    baseline: dict[str, Any],
    callbacks: Sequence[TrainerCallback],
    progress: Progress,
) -> dict[str, Any]:
    """Train with fewer and fewer documents at once until a step fits into the memory; returns the metrics."""
    while True:
        try:
            return _attempt(run, directory, arguments, baseline, callbacks, progress)
        except StepTooLarge as error:
            problem = str(error)
        # Not in the handler, where the error still holds the model.
        fewer = _fewer_at_once(run)
        if fewer is None:
            raise StepTooLarge(problem)
        progress.note(f"the device's memory is used up; the run goes on with --device-batch-size {fewer}")
        settings = replace(run.settings, device_batch_size=fewer)
        run = replace(run, settings=settings, at_once=fewer)
        write_text(directory.config, settings_to_yaml(settings))
        arguments = _arguments(run, directory)
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()


def _attempt(
    run: RunPlan,
    directory: RunDirectory,
    arguments: TrainingArguments,
    baseline: dict[str, Any],
    callbacks: Sequence[TrainerCallback],
    progress: Progress,
) -> dict[str, Any]:
    with explained_memory_errors(building_remedy(run.settings)):
        trainer = _trainer(run, arguments, directory, callbacks, progress)  # brings the model to the device
    with explained_memory_errors(training_remedy(run.settings, run.at_once), StepTooLarge), without_cudnn():
        _fit(trainer, run.settings, directory, progress)
        predictions = {name: trainer.predict_split(split) for name, split in run.data.evaluated.items()}
    metrics = _metrics(trainer, run, predictions) | baseline
    if arguments.should_save:
        try:
            _write_results(directory, run, trainer, predictions, metrics)
        except (OSError, SafetensorError) as error:
            raise TrainingError(
                f"The results cannot be written ({error}); make room, then go on with --resume."
            ) from error
    arguments.distributed_state.wait_for_everyone()
    return metrics


def _fewer_at_once(run: RunPlan) -> int | None:
    """The next smaller number of documents that a step can be made of; None if there is none to try."""
    if process_count() > 1 or run.at_once == 1:  # other processes know nothing of it
        return None
    return documents_at_once(replace(run.settings, device_batch_size=run.at_once // 2))


def _baseline(run: RunPlan, progress: Progress) -> dict[str, Any]:
    """What TF-IDF reaches on the documents of the run, as an entry of the metrics; empty without it."""
    try:
        metrics = kind_of(run.settings).baseline(run.task) if run.settings.baseline else None
    except ValueError as error:
        progress.note(f"there is no TF-IDF baseline: {error}")
        metrics = None
    return {} if metrics is None else {"baseline": metrics}


def _check_trackers(settings: RunSettings) -> None:
    installed = get_available_reporting_integrations()
    missing = [name for name in settings.report_to if name not in installed]
    if missing:
        here = ", ".join(sorted(installed)) or "none"
        unknown = "is unknown or its package is not installed; installed"
        raise SettingsError(f"--report-to: {name!r} {unknown}: {here}." for name in missing)


def _arguments(run: RunPlan, directory: RunDirectory) -> TrainingArguments:
    settings = run.settings
    # bf16 without instructions for it is slower than fp32, on a CPU some thirty times.
    use_bf16 = settings.precision == "bf16" or (settings.precision == "auto" and is_modern_gpu())
    arguments = training_arguments(settings, directory.path, run.at_once, use_bf16)
    if arguments.world_size != process_count():
        raise TrainingError(
            f"{process_count()} processes were launched, but they do not find each other; start them with accelerate "
            "launch or torchrun."
        )
    if arguments.n_gpu > 1:
        # DataParallel would multiply the batch; several GPUs are what `accelerate launch` is for.
        arguments._n_gpu = 1
    return arguments


def _trainer(
    run: RunPlan,
    arguments: TrainingArguments,
    directory: RunDirectory,
    callbacks: Sequence[TrainerCallback],
    progress: Progress,
) -> RunTrainer:
    model = run.take_model()
    if arguments.bf16:
        hold_frozen_in_bfloat16(model)
    trainer = RunTrainer(model, arguments, run.data, run.settings, directory.checkpoints)
    for callback in (*run_callbacks(trainer, run.settings, directory, progress), *callbacks):
        trainer.add_callback(callback)
    return trainer


def _fit(trainer: RunTrainer, settings: RunSettings, directory: RunDirectory, progress: Progress) -> None:
    """Train, from the latest checkpoint if there is one, and end with the epoch that is kept in the model."""
    checkpoint, complaints = find_checkpoint(directory.checkpoints)
    if trainer.args.should_save:
        for complaint in complaints:
            instead = f"goes on from {checkpoint.name}" if checkpoint else "starts from the beginning"
            progress.note(f"{complaint}; the run {instead} instead")
    if checkpoint is not None:
        trainer.restore(checkpoint)
    if checkpoint is None or not is_exhausted(trainer.state.log_history, settings.metric, settings.early_stopping):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.best_trained is not None:
        trainer.load_trained(trainer.best_trained)


def _metrics(trainer: RunTrainer, run: RunPlan, predictions: dict[str, PredictionSet]) -> dict[str, Any]:
    dev = predictions["dev"]
    temperature = fit_temperature(dev.logits, dev.known_labels)
    lines = epoch_lines(trainer.state.log_history)
    metrics: dict[str, Any] = {name: split.evaluate() for name, split in predictions.items()}
    metrics |= {
        f"{name}_calibrated": split.with_temperature(temperature).evaluate() for name, split in predictions.items()
    }
    count = run.parameters
    return metrics | {
        "temperature": temperature.value,
        "best_epoch": next(line["epoch"] for line in lines if line["step"] == trainer.state.best_global_step),
        "epochs": len(lines),
        "parameters": {**asdict(count), "trainable_percent": count.percent("trainable")},
        "seconds": round(trainer.seconds, 3),
        "status": FINISHED,
    }


def _write_results(
    directory: RunDirectory,
    run: RunPlan,
    trainer: RunTrainer,
    predictions: dict[str, PredictionSet],
    metrics: dict[str, Any],
) -> None:
    """Write everything that is kept; `metrics.json`, which says that the run is finished, after all the rest."""
    settings = run.settings
    for name, split in predictions.items():
        write_predictions(directory.predictions(name), split)
    weights = directory.path / settings.method_row.trains
    if settings.keep_weights:
        with replacing_folder(weights) as folder:
            save_trained(trainer.accelerator.unwrap_model(trainer.model), settings, folder)
        with replacing_folder(directory.tokenizer) as folder:
            _save_tokenizer(run, folder)
    else:
        # A run that was to keep them may have been killed here, and resumed with other wishes.
        for folder in (weights, directory.tokenizer):
            shutil.rmtree(folder, ignore_errors=True)
    write_text(directory.model_card, model_card(settings, metrics, run.parameters, run.data.label_names))
    directory.finish(metrics)
    _tidy_up(directory)


def _save_tokenizer(run: RunPlan, folder: Path) -> None:
    try:
        run.base.tokenizer.save_pretrained(str(folder))
    except OSError:
        raise
    except Exception as error:  # the tokenizers library tells of a full disk by a bare Exception
        raise OSError(f"{folder}: the tokenizer cannot be written ({error})") from error


def _tidy_up(directory: RunDirectory) -> None:
    """Remove what a finished run has no use for."""
    if not directory.read_settings().keep_checkpoints:
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
    clear_leftovers(directory.path)

"""One run from settings to a finished run directory."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
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
from prefixprop.data import ClassificationTask, Task
from prefixprop.evaluate import PredictionSet, fit_temperature, measure_floor, write_predictions
from prefixprop.models.gpu import hold_frozen_in_bfloat16, without_cudnn
from prefixprop.processes import is_main_process, process_count
from prefixprop.runs.directory import DOCUMENTS, FINISHED, RunDirectory
from prefixprop.runs.start import check_may_start, check_same_documents, check_same_settings, start
from prefixprop.settings.base_model import BaseModel, choose_max_length, load_base_model
from prefixprop.settings.check import SettingsError, check_settings
from prefixprop.settings.documents import choose_epochs, cut_to_run, fingerprint, load_whole_task
from prefixprop.settings.resolve import idle_notes, resolve
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.callbacks import (
    BestEpoch,
    CheckpointTimes,
    EarlyStopping,
    EpochWatch,
    History,
    Resumption,
    epoch_lines,
    is_exhausted,
)
from prefixprop.train.checkpoints import find_checkpoint
from prefixprop.train.data import RunData, encode_task
from prefixprop.train.environment import describe_environment
from prefixprop.train.errors import (
    StepTooLarge,
    TrainingError,
    building_remedy,
    explained_memory_errors,
    training_remedy,
)
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
    """What a run will do, known before it does it."""

    settings: RunSettings
    base: BaseModel
    task: Task  # the documents that the run reads
    data: RunData
    model: nn.Module
    parameters: ParameterCount
    steps_per_epoch: int
    documents: str  # fingerprint of the data set

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


def _in_silence(stage: str) -> None:
    """Shows nobody what is being done."""


def plan(settings: RunSettings, show: Callable[[str], None] = _in_silence) -> RunPlan:
    """Check the settings, load data and model, and count parameters and steps; nothing is written."""
    check_settings(settings, process_count())
    _check_trackers(settings)
    notes = idle_notes(settings)
    settings = resolve(settings)
    show("loading the model")
    base = load_base_model(settings)
    settings = replace(settings, max_length=choose_max_length(settings, base))
    show("reading documents")
    whole = load_whole_task(settings)
    settings = replace(settings, epochs=choose_epochs(settings, whole))
    task = cut_to_run(whole, settings)
    show("turning documents into tokens")
    data = encode_task(task, base.tokenizer, settings)
    data = replace(data, notes=(*notes, *data.notes))
    set_seed(settings.seed)
    with explained_memory_errors(building_remedy(settings)):
        model = build_trainable(base.build(data.label_names), settings)
    steps = -(-len(data.train_lengths) // settings.documents_per_step)
    return RunPlan(settings, base, task, data, model, count_parameters(model), steps, fingerprint(whole))


def train(
    settings: RunSettings,
    run_dir: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    tell: Callable[[str], None] = warnings.warn,
    show: Callable[[str], None] = _in_silence,
) -> RunResult:
    """Train, evaluate and calibrate one run into `run_dir`; under `accelerate launch` on several devices.

    An existing run is refused, unless it is to be resumed, which ends as if it had never stopped, or overwritten. A
    finished run that is resumed is returned as it is. Where a step does not fit the device's memory, the run goes on
    with fewer documents at once, which changes nothing but its speed. `tell` gets what a user should know: remarks on
    the data, checkpoints that cannot be used, and this. `show` gets what the run is doing before it trains.

    >>> result = train(RunSettings(task="hyperpartisan"), "runs/hyperpartisan")
    >>> result.metrics["test"]["micro_f1"]
    """
    directory = RunDirectory(Path(run_dir))
    check_may_start(directory, resume, overwrite)
    going_on = resume and directory.is_run()
    if going_on and settings.epochs is None:  # a run keeps what its documents decided, whatever they would decide now
        settings = replace(settings, epochs=directory.read_settings().epochs)
    if going_on and directory.is_finished():
        check_same_settings(directory, _comparable(settings, directory))
        if settings.train_files:  # those of a named task do not change by themselves, and may be far away
            check_same_documents(directory, fingerprint(load_whole_task(settings)))
        if settings.keep_weights and not directory.read_settings().keep_weights:
            tell(f"{directory.path} has a finished run without its weights; --overwrite trains it again")
        if is_main_process():
            with directory.claimed():  # a kill may have come between the results and the tidying up
                _tidy_up(directory)
        return RunResult(directory.path, directory.read_metrics())
    run = plan(settings, show)
    arguments = _arguments(run.settings, directory)
    if going_on:
        check_same_settings(directory, run.settings)
        check_same_documents(directory, run.documents)
    # Every process has looked at the folder before the first one writes there.
    arguments.distributed_state.wait_for_everyone()
    try:
        with directory.claimed() if arguments.should_save else contextlib.nullcontext():
            return _train(run, directory, arguments, overwrite, callbacks, tell, show)
    except StepTooLarge:
        fewer = _fewer_at_once(run.settings)
        if fewer is None:
            raise
    # Not in the handler, where the error still holds the model.
    del run
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    tell(f"the device's memory is used up; the run goes on with --device-batch-size {fewer}")
    return train(replace(settings, device_batch_size=fewer), run_dir, True, callbacks=callbacks, tell=tell, show=show)


def _train(
    run: RunPlan,
    directory: RunDirectory,
    arguments: TrainingArguments,
    overwrite: bool,
    callbacks: Sequence[TrainerCallback],
    tell: Callable[[str], None],
    show: Callable[[str], None],
) -> RunResult:
    floor: dict[str, Any] = {}
    if arguments.should_save:
        for note in run.notes:
            tell(note)
        start(directory, run.settings, overwrite)
        _write_start(directory, run, arguments)
        show("fitting a linear model to compare with")
        floor = _floor(run, tell)
    arguments.distributed_state.wait_for_everyone()
    with explained_memory_errors(building_remedy(run.settings)):
        trainer = _trainer(run, arguments, directory, callbacks)  # brings the model to the device
    with explained_memory_errors(training_remedy(run.settings), StepTooLarge), without_cudnn():
        _fit(trainer, run.settings, directory, tell)
        predictions = {name: trainer.predict_split(split) for name, split in run.data.evaluated.items()}
    metrics = _metrics(trainer, run, predictions) | floor
    if arguments.should_save:
        try:
            _write_results(directory, run, trainer, predictions, metrics)
        except (OSError, SafetensorError) as error:
            raise TrainingError(
                f"The results cannot be written ({error}); make room, then go on with --resume."
            ) from error
    arguments.distributed_state.wait_for_everyone()
    return RunResult(directory.path, metrics)


def _fewer_at_once(settings: RunSettings) -> int | None:
    """The next smaller number of documents that a step can be made of; None if there is none to try."""
    if process_count() > 1:  # the other processes know nothing of it
        return None
    half = settings.device_batch_size // 2
    return next((count for count in range(half, 0, -1) if settings.documents_per_step % count == 0), None)


def _floor(run: RunPlan, tell: Callable[[str], None]) -> dict[str, Any]:
    """What a linear model reaches on the documents of the run, as an entry of the metrics; empty without one."""
    if not run.settings.floor or not isinstance(run.task, ClassificationTask):
        return {}
    try:
        return {"floor": measure_floor(run.task)}
    except ValueError as error:
        tell(f"the run is not compared with a linear model: {error}")
        return {}


def _comparable(settings: RunSettings, directory: RunDirectory) -> RunSettings:
    """The settings with `max_length` as stored if it is left to the model, which is not loaded for a finished run."""
    settings = resolve(settings)
    if settings.max_length is None:
        settings = replace(settings, max_length=directory.read_settings().max_length)
    return settings


def _check_trackers(settings: RunSettings) -> None:
    installed = get_available_reporting_integrations()
    missing = [name for name in settings.report_to if name not in installed]
    if missing:
        here = ", ".join(sorted(installed)) or "none"
        raise SettingsError(
            [
                f"--report-to: {name!r} is unknown or its package is not installed; installed: {here}."
                for name in missing
            ]
        )


def _arguments(settings: RunSettings, directory: RunDirectory) -> TrainingArguments:
    accumulation = settings.documents_per_step // (settings.device_batch_size * process_count())
    # bf16 without instructions for it is slower than fp32, on a CPU some thirty times.
    use_bf16 = settings.precision == "bf16" or (settings.precision == "auto" and is_modern_gpu())
    arguments = training_arguments(settings, directory.path, accumulation, use_bf16)
    if arguments.world_size != process_count():
        raise TrainingError(
            f"{process_count()} processes were launched, but they do not find each other; start them with accelerate "
            "launch or torchrun."
        )
    if arguments.n_gpu > 1:
        # DataParallel would multiply the batch; several GPUs are what `accelerate launch` is for.
        arguments._n_gpu = 1
    return arguments


def _write_start(directory: RunDirectory, run: RunPlan, arguments: TrainingArguments) -> None:
    if run.data.label_names is not None:
        write_json(directory.labels, list(run.data.label_names))
    write_text(directory.lengths, json.dumps(list(run.data.train_lengths)) + "\n")  # a long list, on one line
    environment = describe_environment(run.settings.seed, arguments.device, process_count())
    write_json(directory.environment, environment | {DOCUMENTS: run.documents})


def _trainer(
    run: RunPlan, arguments: TrainingArguments, directory: RunDirectory, callbacks: Sequence[TrainerCallback]
) -> RunTrainer:
    if arguments.bf16:
        hold_frozen_in_bfloat16(run.model)
    trainer = RunTrainer(run.model, arguments, run.data, run.settings, directory.checkpoints)
    own: list[TrainerCallback] = [
        EpochWatch(trainer),
        Resumption(trainer),
        History(trainer, directory.history),
        CheckpointTimes(run.settings.checkpoint_every, run.settings.checkpoint_seconds),
        EarlyStopping(run.settings.metric, run.settings.early_stopping),
    ]
    if run.settings.keep == "best":
        own.append(BestEpoch(trainer, run.settings.metric))
    for callback in (*own, *callbacks):
        trainer.add_callback(callback)
    return trainer


def _fit(trainer: RunTrainer, settings: RunSettings, directory: RunDirectory, tell: Callable[[str], None]) -> None:
    """Train, from the latest checkpoint if there is one, and end with the epoch that is kept in the model."""
    checkpoint, complaints = find_checkpoint(directory.checkpoints)
    if trainer.args.should_save:
        for complaint in complaints:
            instead = f"goes on from {checkpoint.name}" if checkpoint else "starts from the beginning"
            tell(f"{complaint}; the run {instead} instead")
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
    weights = directory.path / settings.method_row.folder
    if settings.keep_weights:
        with replacing_folder(weights) as folder:
            save_trained(trainer.accelerator.unwrap_model(trainer.model), settings, folder)
        with replacing_folder(directory.tokenizer) as folder:
            run.base.tokenizer.save_pretrained(str(folder))
    else:
        # A run that was to keep them may have been killed here, and resumed with other wishes.
        for folder in (weights, directory.tokenizer):
            shutil.rmtree(folder, ignore_errors=True)
    labels = None if run.data.label_names is None else len(run.data.label_names)
    write_text(directory.model_card, model_card(settings, run.base.name, metrics, run.parameters, labels))
    directory.write_manifest()
    write_json(directory.metrics, metrics)
    _tidy_up(directory)


def _tidy_up(directory: RunDirectory) -> None:
    """Remove what a finished run has no use for."""
    if not directory.read_settings().keep_checkpoints:
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
    clear_leftovers(directory.path)

"""A run that trains one model with Hugging Face's Trainer, and calibrates it on the dev set."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments

from prefixprop.atomic_files import write_text
from prefixprop.evaluate import PredictionSet, Temperature, decide, fit_temperature, measure_trust
from prefixprop.models.gpu import hold_frozen_in_bfloat16, without_cudnn
from prefixprop.processes import process_count
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory
from prefixprop.runs.start import restore_replaced
from prefixprop.settings.recipe import settings_to_yaml
from prefixprop.settings.resolve import documents_at_once
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.callbacks import epoch_lines, is_exhausted, run_callbacks
from prefixprop.train.checkpoints import find_checkpoint
from prefixprop.train.errors import (
    StepTooLarge,
    TrainingError,
    building_remedy,
    explained_memory_errors,
    training_remedy,
)
from prefixprop.train.kinds import kind_of
from prefixprop.train.plan import RunPlan, use_bf16
from prefixprop.train.results import RunResult, begin_run, explained_writing, last_metrics, write_results
from prefixprop.train.trainable import save_trained
from prefixprop.train.trainer import RunTrainer, training_arguments


def train_single(
    run: RunPlan, directory: RunDirectory, overwrite: bool, callbacks: Sequence[TrainerCallback], progress: Progress
) -> RunResult:
    """Train and write a run; under `accelerate launch` on several devices."""
    arguments = _arguments(run, directory)
    # Every process has looked at the folder before the first one writes there.
    arguments.distributed_state.wait_for_everyone()
    with directory.claimed() if arguments.should_save else contextlib.nullcontext():
        try:
            baseline: dict[str, Any] = {}
            if arguments.should_save:
                begin_run(run, directory, arguments.device, overwrite, progress)
                progress.stage("fitting the baseline")
                baseline = _baseline(run, progress)
            arguments.distributed_state.wait_for_everyone()
            return RunResult(directory.path, _train(run, directory, arguments, baseline, callbacks, progress))
        except BaseException:
            if arguments.should_save:
                restore_replaced(directory)
            raise


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
        progress.note(f"the device is out of memory; the run continues with --device-batch-size {fewer}")
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
    temperature = fit_temperature(predictions["dev"].logits, predictions["dev"].known_labels)
    thresholds: dict[str, Any] = {}
    folds = run.data.evaluated["dev"].folds
    if folds is not None:
        predictions, found = decide(predictions, temperature, folds)
        thresholds = {"thresholds": found.tolist()}
    metrics = _metrics(trainer, run, predictions, temperature) | thresholds | baseline
    if arguments.should_save:
        model = trainer.accelerator.unwrap_model(trainer.model)
        with explained_writing():
            write_results(directory, run, predictions, metrics, partial(save_trained, model, run.settings), progress)
    arguments.distributed_state.wait_for_everyone()
    return metrics


def _fewer_at_once(run: RunPlan) -> int | None:
    """The next smaller number of documents that a step can be made of; None if there is none to try."""
    if process_count() > 1 or run.at_once == 1:  # other processes know nothing of it
        return None
    return documents_at_once(replace(run.settings, device_batch_size=run.at_once // 2))


def _baseline(run: RunPlan, progress: Progress) -> dict[str, Any]:
    """What a simple model reaches on the documents of the run, as an entry of the metrics; empty without it."""
    try:
        metrics = kind_of(run.settings).baseline(run.task, run.settings) if run.settings.baseline else None
    except ValueError as error:
        progress.note(f"there is no TF-IDF baseline: {error}")
        metrics = None
    return {} if metrics is None else {"baseline": metrics}


def _arguments(run: RunPlan, directory: RunDirectory) -> TrainingArguments:
    arguments = training_arguments(run.settings, directory.path, run.at_once, use_bf16(run.settings))
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


def _metrics(
    trainer: RunTrainer, run: RunPlan, predictions: dict[str, PredictionSet], temperature: Temperature
) -> dict[str, Any]:
    lines = epoch_lines(trainer.state.log_history)
    calibrated = {name: split.with_temperature(temperature) for name, split in predictions.items()}
    metrics: dict[str, Any] = {name: split.evaluate() for name, split in predictions.items()}
    metrics |= {f"{name}_calibrated": split.evaluate() for name, split in calibrated.items()}
    return metrics | {
        "temperature": temperature.value,
        **measure_trust(run.settings.target_precision, calibrated),
        "best_epoch": next(line["epoch"] for line in lines if line["step"] == trainer.state.best_global_step),
        "epochs": len(lines),
        "seconds": round(trainer.seconds, 3),
        **last_metrics(run.parameters),
    }

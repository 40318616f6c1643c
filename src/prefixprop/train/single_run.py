"""A run that trains one model with Hugging Face's Trainer, and calibrates it on the dev set."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from prefixprop.atomic_files import write_text
from prefixprop.evaluate import TEMPERATURE_SPREAD, decide, fit_temperature
from prefixprop.models.gpu import hold_frozen_in_bfloat16, use_bf16, without_cudnn
from prefixprop.progress import Progress, process_count
from prefixprop.runs.directory import RunDirectory, discard_replaced
from prefixprop.settings.methods import ADAPTER, HEAD, HEAD_FILE, MODEL
from prefixprop.settings.resolve import documents_at_once, settings_to_yaml
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import kind_of
from prefixprop.train.plan import RunPlan, Trained
from prefixprop.train.recovery import (
    TrainingError,
    building_remedy,
    explained_memory_errors,
    is_out_of_memory,
    training_remedy,
    trusted_checkpoint,
)
from prefixprop.train.trainer import RunTrainer, ends_epoch, trained_tensors, write_history


def train_single(
    run: RunPlan,
    directory: RunDirectory,
    arguments: TrainingArguments,
    callbacks: Sequence[TrainerCallback],
    progress: Progress,
) -> Trained:
    """Train, with fewer and fewer documents at once until a step fits into the memory; evaluate and calibrate."""
    baseline = _baseline(run, progress) if arguments.should_save else {}
    arguments.distributed_state.wait_for_everyone()
    while True:
        with explained_memory_errors(training_remedy(run.settings, run.at_once)):
            try:
                trained = _attempt(run, directory, arguments, callbacks, progress)
                return replace(trained, details=trained.details | baseline)
            except RuntimeError as error:
                # Other processes know nothing of it.
                if not is_out_of_memory(error) or run.at_once == 1 or process_count() > 1:
                    raise
        # Not in the handler, where the error still holds the model.
        fewer = documents_at_once(replace(run.settings, device_batch_size=run.at_once // 2))
        progress.note(f"the device is out of memory; the run continues with --device-batch-size {fewer}")
        run = replace(run, settings=replace(run.settings, device_batch_size=fewer), at_once=fewer)
        write_text(directory.config, settings_to_yaml(run.settings))
        arguments = training_arguments(run, directory)
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()


def _baseline(run: RunPlan, progress: Progress) -> dict[str, Any]:
    """What a simple model reaches on the documents of the run, as an entry of the metrics; empty without it."""
    if not run.settings.baseline:
        return {}
    progress.stage("fitting the baseline")
    try:
        metrics = kind_of(run.settings).baseline(run.task, run.settings)
    except ValueError as error:
        progress.note(f"there is no baseline: {error}")
        return {}
    return {} if metrics is None else {"baseline": metrics}


def _attempt(
    run: RunPlan,
    directory: RunDirectory,
    arguments: TrainingArguments,
    callbacks: Sequence[TrainerCallback],
    progress: Progress,
) -> Trained:
    with explained_memory_errors(building_remedy(run.settings)):
        model = run.take_model()
        if arguments.bf16:
            hold_frozen_in_bfloat16(model)
        # The trainer brings the model to the device.
        trainer = RunTrainer(model, arguments, run.data, run.settings, directory.checkpoints)
    for callback in (RunCallback(trainer, run.settings, directory, progress), *callbacks):
        trainer.add_callback(callback)
    with without_cudnn():
        _fit(trainer, run.settings, directory, progress)
        predictions = {name: trainer.predict_split(split) for name, split in run.data.evaluated.items()}
    dev = predictions["dev"]
    temperature = fit_temperature(dev.logits, dev.known_labels, TEMPERATURE_SPREAD)
    thresholds: dict[str, Any] = {}
    folds = run.data.evaluated["dev"].folds
    if folds is not None:
        predictions, found = decide(predictions, temperature, folds)
        thresholds = {"thresholds": found.tolist()}
    lines = epoch_lines(trainer.state.log_history)
    details = {
        "best_epoch": next(line["epoch"] for line in lines if line["step"] == trainer.state.best_global_step),
        "epochs": len(lines),
        "seconds": round(trainer.seconds, 3),
        **thresholds,
    }
    model = trainer.accelerator.unwrap_model(trainer.model)
    return Trained(predictions, temperature, details, run.parameters, partial(save_trained, model, run.settings))


def _fit(trainer: RunTrainer, settings: RunSettings, directory: RunDirectory, progress: Progress) -> None:
    """Train, from the latest checkpoint if there is one, and end with the epoch that is kept in the model."""
    checkpoint = trusted_checkpoint(directory.checkpoints, progress if trainer.args.should_save else None)
    if checkpoint is not None:
        trainer.restore(checkpoint)
    if not is_exhausted(trainer.state.log_history, settings.metric, settings.early_stopping):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.best_trained is not None:
        trainer.load_trained(trainer.best_trained)


def save_trained(model: Any, settings: RunSettings, folder: Path) -> None:
    """Store what was trained in `folder`, as safetensors."""
    kind = settings.method_row.trains
    if kind == ADAPTER:
        # Prefix methods never change the embeddings, and looking for a change would ask the hub.
        model.save_pretrained(str(folder), save_embedding_layers=False)
    elif kind == MODEL:
        model.save_pretrained(str(folder))
    else:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in trained_tensors(model).items()}
        save_file(tensors, folder / HEAD_FILE, metadata={"trained": json.dumps(sorted(tensors))})


def training_arguments(run: RunPlan, directory: RunDirectory) -> TrainingArguments:
    """The Trainer's arguments for a run; trackers write into its directory."""
    settings, at_once = run.settings, run.at_once
    # What training keeps of a layer for backward is about what computing the layer takes. So there is room for twice
    # as many documents where nothing is trained, unless training keeps next to nothing.
    keeps_activations = settings.method_row.trains != HEAD and not settings.gradient_checkpointing
    arguments = TrainingArguments(
        output_dir=str(directory.path),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=at_once,
        per_device_eval_batch_size=at_once * (2 if keeps_activations else 1),
        gradient_accumulation_steps=settings.documents_per_step // (at_once * process_count()),
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup,  # below 1 it is a share of all steps
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=use_bf16(settings.precision),
        # accelerate takes several processes without an accelerator for one each, unless it is told.
        use_cpu=not torch.accelerator.is_available(),
        gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if settings.gradient_checkpointing else None,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        metric_for_best_model=settings.metric,
        greater_is_better=True,
        label_names=["labels"],
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
        ddp_find_unused_parameters=False,
        # Batches go to a GPU while it still works on the one before.
        dataloader_pin_memory=torch.cuda.is_available(),
        accelerator_config={"non_blocking": torch.cuda.is_available()},
        disable_tqdm=True,
        report_to=list(settings.report_to) or "none",
        seed=settings.seed,
    )
    if arguments.world_size != process_count():
        raise TrainingError(
            f"{process_count()} processes were launched, but they do not find each other; start them with accelerate "
            "launch or torchrun."
        )
    if arguments.n_gpu > 1:
        # DataParallel would multiply the batch; several GPUs are what `accelerate launch` is for.
        arguments._n_gpu = 1
    return arguments


# --- what happens beside the steps ----------------------------------------------------------------------------------


class RunCallback(TrainerCallback):
    """What a run does beside its steps: it tells of progress, writes its history and decides on checkpoints."""

    def __init__(
        self, trainer: RunTrainer, settings: RunSettings, directory: RunDirectory, progress: Progress
    ) -> None:
        self.trainer, self.settings, self.directory, self.progress = trainer, settings, directory, progress
        self.saved = time.monotonic()
        self.evaluated = 0  # batches

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # A resumed epoch begins in its middle, and the fraction that an epoch ends with may not add up to 1 exactly.
        epoch = int((state.epoch or 0) + 1e-6)
        self.trainer.order.set_epoch(epoch)
        if hasattr(self.trainer.train_dataset, "set_epoch"):  # questions are shuffled anew
            self.trainer.train_dataset.set_epoch(epoch)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # No checkpoint at an epoch's last step: a run killed between it and the epoch's evaluation would go on with
        # the next epoch, and this one would never be judged.
        every = self.settings.checkpoint_every
        if every and state.global_step % every == 0 and not ends_epoch(args, state):
            control.should_save = True
        if state.is_world_process_zero:
            discard_replaced(self.directory)
            self.progress.advance("training", state.global_step, state.max_steps)

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: Any, eval_dataloader: Any = None, **_: Any
    ) -> None:
        self.evaluated += 1
        if state.is_world_process_zero:
            self.progress.advance("evaluating", self.evaluated, len(eval_dataloader))

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **_: Any
    ) -> None:
        metric, patience = self.settings.metric, self.settings.early_stopping
        self.evaluated = 0
        state.log_history[-1]["seconds"] = round(self.trainer.seconds, 3)
        if state.is_world_process_zero:
            lines = epoch_lines(state.log_history)
            write_history(self.directory, lines)
            line = lines[-1]
            self.progress.line(
                f"epoch {line['epoch']:>3}  step {line['step']:>6}  loss {line.get('loss', math.nan):.4f}  "
                f"dev {metric} {line[f'dev_{metric}']:.4f}  dev ECE {line['dev_ece']:.4f}"
            )
        # All processes take part in a checkpoint, so the first one's clock decides for all.
        (is_due,) = broadcast_object_list([time.monotonic() - self.saved >= self.settings.checkpoint_seconds])
        control.should_save = control.should_save and is_due
        # Unlike the Trainer's this keeps no count of its own, so that a resumed run stops where the first would have.
        if is_exhausted(state.log_history, metric, patience):
            control.should_training_stop = True
        # The Trainer compares in the same way, but later: here the best is still that of the epochs before.
        best = -math.inf if state.best_metric is None else state.best_metric
        if self.settings.keep == "best" and metrics[f"eval_{metric}"] > best:
            self.trainer.keep_as_best()

    def on_predict(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.evaluated = 0

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.saved = time.monotonic()


def is_exhausted(log_history: Sequence[dict[str, Any]], metric: str, patience: int) -> bool:
    """Whether the last `patience` evaluations all were no better than the best before them."""
    values = [entry[f"eval_{metric}"] for entry in log_history if f"eval_{metric}" in entry]
    return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])


def epoch_lines(log_history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the Trainer logged, as one record per epoch: the training `loss`, `dev_ece` and the like."""
    epochs: dict[int, dict[str, Any]] = {}
    speed = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "eval_model_preparation_time")
    for entry in log_history:
        if "loss" not in entry and not any(name.startswith("eval_") for name in entry):
            continue
        number = max(1, round(entry["epoch"]))
        record = epochs.setdefault(number, {"epoch": number, "step": entry["step"]})
        for name, value in entry.items():
            if name not in ("epoch", "step", *speed):
                record[name.replace("eval_", "dev_", 1) if name.startswith("eval_") else name] = value
    return list(epochs.values())

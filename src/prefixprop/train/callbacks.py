"""What happens besides training.

The epoch's number, its history, the best epoch, the times of checkpoints, what a resumed run gets back, and an early
end.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from prefixprop.atomic_files import write_text
from prefixprop.train.checkpoints import restore_generators
from prefixprop.train.trainer import RunTrainer


class EpochWatch(TrainerCallback):
    """Tells the order of documents, and questions that are shuffled anew, which epoch it is."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # A resumed epoch begins in its middle, and the fraction that an epoch ends with may not add up to 1 exactly.
        epoch = int((state.epoch or 0) + 1e-6)
        self.trainer.order.set_epoch(epoch)
        if hasattr(self.trainer.train_dataset, "set_epoch"):
            self.trainer.train_dataset.set_epoch(epoch)


class History(TrainerCallback):
    """Writes a line per epoch: loss, learning rate, every measure of dev with its ECE, seconds, trained alpha."""

    def __init__(self, trainer: RunTrainer, path: Path) -> None:
        self.trainer, self.path = trainer, path

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        state.log_history[-1]["seconds"] = round(self.trainer.seconds, 3)
        if state.is_world_process_zero:
            lines = [json.dumps(line) + "\n" for line in epoch_lines(state.log_history)]
            write_text(self.path, "".join(lines))


class BestEpoch(TrainerCallback):
    """Has the trainer hold what was trained whenever dev's metric is better than ever before."""

    def __init__(self, trainer: RunTrainer, metric: str) -> None:
        self.trainer, self.metric = trainer, metric

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **_: Any,
    ) -> None:
        # The Trainer compares in the same way, but later: here the best is still that of the epochs before.
        best = -math.inf if state.best_metric is None else state.best_metric
        if metrics[f"eval_{self.metric}"] > best:
            self.trainer.keep_as_best()


class Resumption(TrainerCallback):
    """Gives a resumed run its optimizer, its schedule and its random generators back.

    The Trainer does the same, at the same places, with checkpoints of its own, and passes over what a checkpoint does
    not have in files of its names.
    """

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer.resumed is not None:
            self.trainer.optimizer.load_state_dict(self.trainer.resumed.optimizer)
            self.trainer.lr_scheduler.load_state_dict(self.trainer.resumed.scheduler)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # A checkpoint of an epoch's end is from before the first random number of the next, which its batches draw.
        self._restore_generators(args)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # One of an epoch's middle is from after that.
        if not ends_epoch(args, state):
            self._restore_generators(args)
        self.trainer.resumed = None

    def _restore_generators(self, args: TrainingArguments) -> None:
        # With another number of processes than before there is nothing to restore exactly.
        if self.trainer.resumed is not None and len(self.trainer.resumed.generators) == args.world_size:
            restore_generators(self.trainer.resumed.generators[args.process_index])


class CheckpointTimes(TrainerCallback):
    """A checkpoint every `every` steps, and at the end of an epoch if the last is at least `seconds` old.

    None of the first kind at an epoch's last step: a run killed between such a checkpoint and the epoch's evaluation
    would go on with the next epoch, and this one would never be judged.
    """

    def __init__(self, every: int, seconds: float) -> None:
        self.every, self.seconds = every, seconds
        self.last = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.every and state.global_step % self.every == 0 and not ends_epoch(args, state):
            control.should_save = True
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        # All processes take part in a checkpoint, so the first one's clock decides for all.
        (is_due,) = broadcast_object_list([time.monotonic() - self.last >= self.seconds])
        control.should_save = control.should_save and is_due
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = time.monotonic()


class EarlyStopping(TrainerCallback):
    """Ends training after `patience` epochs without a better dev metric.

    Unlike the Trainer's it keeps no count of its own, so that a resumed run stops where the first would have.
    """

    def __init__(self, metric: str, patience: int) -> None:
        self.metric, self.patience = metric, patience

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if is_exhausted(state.log_history, self.metric, self.patience):
            control.should_training_stop = True
        return control


def ends_epoch(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether the last step was its epoch's last."""
    return state.global_step % (state.max_steps // int(args.num_train_epochs)) == 0


def is_exhausted(log_history: Sequence[dict[str, Any]], metric: str, patience: int) -> bool:
    """Whether the last `patience` evaluations all were no better than the best before them."""
    values = [entry[f"eval_{metric}"] for entry in log_history if f"eval_{metric}" in entry]
    return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])


def epoch_lines(log_history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the Trainer logged, as one record per epoch: `loss` of train, `dev_ece` and the like of dev."""
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

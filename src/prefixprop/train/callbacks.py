"""What happens beside the steps of training: history, progress, checkpoints, resumption, stopping."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from prefixprop.atomic_files import write_text
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory, discard_replaced
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.checkpoints import restore_generators
from prefixprop.tuners.layer import PrefixLayer

if TYPE_CHECKING:
    from prefixprop.train.trainer import RunTrainer


class RunCallback(TrainerCallback):
    """What a run does beside its steps: it tells of progress, writes its history and decides on checkpoints.

    A resumed run gets its optimizer, its schedule and its random generators back. The Trainer does the same, at the
    same places, with checkpoints of its own, and passes over what a checkpoint does not have in files of its names.
    """

    def __init__(
        self, trainer: RunTrainer, settings: RunSettings, directory: RunDirectory, progress: Progress
    ) -> None:
        self.trainer, self.settings, self.directory, self.progress = trainer, settings, directory, progress
        self.saved = time.monotonic()
        self.evaluated = 0  # batches

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer.resumed is not None:
            self.trainer.optimizer.load_state_dict(self.trainer.resumed.optimizer)
            self.trainer.lr_scheduler.load_state_dict(self.trainer.resumed.scheduler)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # A resumed epoch begins in its middle, and the fraction that an epoch ends with may not add up to 1 exactly.
        epoch = int((state.epoch or 0) + 1e-6)
        self.trainer.order.set_epoch(epoch)
        if hasattr(self.trainer.train_dataset, "set_epoch"):  # questions are shuffled anew
            self.trainer.train_dataset.set_epoch(epoch)
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


class GracefulStop(TrainerCallback):
    """Once it is asked to, ends training at the next step: after a checkpoint it raises `KeyboardInterrupt`.

    An epoch's last step is evaluated first, as in `RunCallback`. Only for a single process: several would not stop at
    the same step.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.is_training = self.is_asked = False

    def ask(self, *_: Any) -> None:
        """The handler of a signal; where there is nothing to save, or nobody wants to wait, the end is now."""
        if self.is_asked or not self.is_training:
            raise KeyboardInterrupt
        self.is_asked = True
        self.progress.note("Stopping after this step, with a checkpoint. Press Ctrl-C again to stop at once.")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.is_training = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.is_training = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_save |= self.is_asked and not ends_epoch(args, state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_save |= self.is_asked

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.is_asked:
            raise KeyboardInterrupt


def ends_epoch(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether the last step was its epoch's last."""
    return state.global_step % (state.max_steps // int(args.num_train_epochs)) == 0


def is_exhausted(log_history: Sequence[dict[str, Any]], metric: str, patience: int) -> bool:
    """Whether the last `patience` evaluations all were no better than the best before them."""
    values = [entry[f"eval_{metric}"] for entry in log_history if f"eval_{metric}" in entry]
    return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])


def write_history(directory: RunDirectory, lines: Iterable[dict[str, Any]]) -> None:
    """Write a line per epoch."""
    write_text(directory.history, "".join(json.dumps(line) + "\n" for line in lines))


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


def trained_alpha(model: nn.Module) -> dict[str, float]:
    """The active adapter's trained alpha by name, such as `alpha/layer_1` or `alpha/layer_1/head_3`.

    In mode `query` alpha differs from token to token; instead there is the norm of the trained vector of each head
    (`alpha_query/layer_1/head_3`): it starts at zero, with the configured alpha for every query. Gates, if there are
    any, are `gate/layer_1` and so on.
    """
    values: dict[str, float] = {}
    for layer in model.modules():
        if not isinstance(layer, PrefixLayer):
            continue
        trained = [("gate", weight) for weight in layer.active_gates()]
        for weight in layer.active_alpha():
            trained.append(("alpha_query", weight.norm(dim=-1)) if weight.dim() == 3 else ("alpha", weight))
        for name, numbers in trained:
            for index, number in enumerate(numbers.detach().float().cpu(), start=1):
                if number.dim() == 0:
                    values[f"{name}/layer_{index}"] = number.item()
                for head, value in enumerate(number.tolist() if number.dim() else [], start=1):
                    values[f"{name}/layer_{index}/head_{head}"] = value
    return values


class AlphaLogger(TrainerCallback):
    """Adds `trained_alpha` to everything the Trainer logs."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict | None = None, model: Any = None, **_: Any
    ) -> None:
        if logs is None or model is None:
            return
        values = trained_alpha(model)
        logs.update(values)
        state.log_history[-1].update(values)


def log_alpha(trainer: Trainer) -> None:
    """Let a trainer log alpha; put first among the callbacks, so that trackers see it too."""
    trainer.callback_handler.callbacks.insert(0, AlphaLogger())

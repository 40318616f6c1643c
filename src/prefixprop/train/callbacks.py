"""What happens beside the steps of training: history, progress, checkpoints, resumption, stopping."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from prefixprop.atomic_files import write_text
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory
from prefixprop.runs.start import discard_replaced
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.checkpoints import restore_generators
from prefixprop.tuners.layer import PrefixLayer

if TYPE_CHECKING:
    from prefixprop.train.trainer import RunTrainer


def run_callbacks(
    trainer: RunTrainer, settings: RunSettings, directory: RunDirectory, progress: Progress
) -> Iterator[TrainerCallback]:
    """All that belongs to a run, in the order in which it is called."""
    yield DiscardReplaced(directory)
    yield EpochNumber(trainer)
    yield Resumption(trainer)
    yield History(trainer, directory.history)
    yield CheckpointTimes(settings.checkpoint_every, settings.checkpoint_seconds)
    yield EarlyStopping(settings.metric, settings.early_stopping)
    if settings.keep == "best":
        yield BestEpoch(trainer, settings.metric)
    yield ProgressReports(progress, settings.metric)


class DiscardReplaced(TrainerCallback):
    """Removes the run that this one replaces as soon as it has trained a step."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    def on_step_end(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        if args.should_save:
            discard_replaced(self.directory)


class EpochNumber(TrainerCallback):
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
    """Writes a line per epoch: loss, learning rate, every metric on the dev set, seconds, trained alpha."""

    def __init__(self, trainer: RunTrainer, path: Path) -> None:
        self.trainer, self.path = trainer, path

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        state.log_history[-1]["seconds"] = round(self.trainer.seconds, 3)
        if state.is_world_process_zero:
            lines = [json.dumps(line) + "\n" for line in epoch_lines(state.log_history)]
            write_text(self.path, "".join(lines))


class BestEpoch(TrainerCallback):
    """Has the trainer hold what was trained whenever the dev metric is better than ever before."""

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


class GracefulStop(TrainerCallback):
    """Once it is asked to, ends training at the next step: after a checkpoint it raises `KeyboardInterrupt`.

    An epoch's last step is evaluated first, as in `CheckpointTimes`. Only for a single process: several would not
    stop at the same step.
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

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.is_asked and not ends_epoch(args, state):
            control.should_save = True
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.is_asked:
            control.should_save = True
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.is_asked:
            raise KeyboardInterrupt


class ProgressReports(TrainerCallback):
    """Tells a `Progress` of steps, of documents that are evaluated, and of every epoch; only in the first process."""

    def __init__(self, progress: Progress, metric: str) -> None:
        self.progress, self.metric = progress, metric
        self.evaluated = 0  # batches

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.is_world_process_zero:
            self.progress.advance("training", state.global_step, state.max_steps)

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: Any, eval_dataloader: Any = None, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            self.evaluated += 1
            self.progress.advance("evaluating", self.evaluated, len(eval_dataloader))

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.evaluated = 0
        if state.is_world_process_zero:
            line = epoch_lines(state.log_history)[-1]
            self.progress.line(
                f"epoch {line['epoch']:>3}  step {line['step']:>6}  loss {line.get('loss', math.nan):.4f}  "
                f"dev {self.metric} {line[f'dev_{self.metric}']:.4f}  dev ECE {line['dev_ece']:.4f}"
            )

    def on_predict(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.evaluated = 0


def ends_epoch(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether the last step was its epoch's last."""
    return state.global_step % (state.max_steps // int(args.num_train_epochs)) == 0


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

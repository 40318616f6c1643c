"""Hugging Face's Trainer with this package's batches, checkpoints and checks of the loss."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from prefixprop.atomic_files import write_text
from prefixprop.data import DocumentCollator
from prefixprop.evaluate import PredictionSet
from prefixprop.models.gpu import CudaGraph, StaticGradients, can_use_cuda_graphs, padded_length
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import EvaluationSplit, RunData
from prefixprop.train.recovery import (
    TRAINER_STATE,
    Snapshot,
    TrainingError,
    generator_states,
    read_checkpoint,
    restore_generators,
    write_checkpoint,
)
from prefixprop.tuners.layer import PrefixLayer

# Documents are sorted by their length times a random factor, e^(0.15 z) with z normal. Sorted by length alone, a
# small data set would have the same batches in every epoch, and train worse.
_LENGTH_BLUR = 0.15


class LengthGroupedOrder(Sampler[int]):
    """Places of documents, in an order that depends on seed and epoch alone.

    It does not depend on what else was drawn at random, on how many processes there are, or on how many documents a
    device takes at once, so that a resumed run and a run on several devices take the very same steps. Consecutive
    `batch_size` indices are one step, longest document first, so that the parts of it that are computed one after the
    other are of like length too; steps themselves are in random order. The first step of the first epoch is the one
    with the longest document of all: if memory is too small, that is known at once.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed = lengths, batch_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        size = self.batch_size
        indices = torch.randperm(len(self.lengths), generator=generator).tolist()
        # What is left over makes a short step, which must be the last one; it is of any documents.
        full = len(indices) - len(indices) % size
        blur = torch.randn(len(indices), generator=generator, dtype=torch.float64).mul(_LENGTH_BLUR).exp().tolist()
        by_length = sorted(indices[:full], key=lambda index: self.lengths[index] * blur[index])
        steps = [by_length[start : start + size] for start in range(0, full, size)]
        steps = [steps[index] for index in torch.randperm(len(steps), generator=generator).tolist()]
        if self.epoch == 0 and steps:
            longest = max(range(len(steps)), key=lambda step: max(self.lengths[index] for index in steps[step]))
            steps[0], steps[longest] = steps[longest], steps[0]
        for step in (*steps, indices[full:]):
            yield from sorted(step, key=lambda index: -self.lengths[index])


class RunTrainer(Trainer):
    """Trains one run; checkpoints are those of `prefixprop.train.recovery`.

    Its own are how batches are drawn, a warm-up that does not begin at 0, a check of every loss, and checkpoints; the
    loop and the optimizer are the Trainer's. `RunCallback` in `prefixprop.train.single_run` is part of it: it
    has the best epoch's tensors held in memory.
    """

    compute_metrics: Any

    def __init__(
        self, model: nn.Module, arguments: TrainingArguments, data: RunData, settings: RunSettings, checkpoints: Path
    ) -> None:
        self.checkpoints = checkpoints
        self.order = LengthGroupedOrder(data.train_lengths, settings.documents_per_step, settings.seed)
        self.best_trained: Mapping[str, Tensor] | None = None
        self.epoch_loss = 0.0
        self.uncounted: list[Tensor] = []  # losses that are still on the device
        self.unchecked: tuple[int, float, Callable[[], float]] | None = None
        self.resumed: Snapshot | None = None  # what `train` begins with
        self.seconds_before = 0.0
        self.started = time.monotonic()
        dev = data.evaluated["dev"]
        super().__init__(
            model,
            arguments,
            data_collator=data.collator,
            train_dataset=data.train,
            eval_dataset=dev.dataset,
            compute_metrics=lambda result: dev.predictions(result.predictions).evaluate(),
            compute_loss_func=data.loss,
        )
        self.remove_callback(PrinterCallback)
        log_alpha(self)
        self._replays = self._may_replay()
        if self._replays:
            lengths = partial(padded_length, most=settings.max_length or 0)
            self.data_collator: Any = dataclasses.replace(self.data_collator, padded_length=lengths)
        self._gradients = StaticGradients()
        self._step, self._evaluation = CudaGraph(self._step_of), CudaGraph(self._evaluation_of)

    def _may_replay(self) -> bool:
        """Several processes exchange gradients, and checkpointing computes a second time: neither is recorded."""
        alone = self.args.world_size == 1 and not self.args.gradient_checkpointing
        return alone and isinstance(self.data_collator, DocumentCollator) and can_use_cuda_graphs(self.model)

    def predict_split(self, split: EvaluationSplit) -> PredictionSet:
        """The predictions of a split, in the order of its documents."""
        self.compute_metrics = None  # which are those of the dev set, after an epoch
        return split.predictions(self.predict(split.dataset).predictions)

    @property
    def seconds(self) -> float:
        """How long the run has taken, over all resumptions, not counting what a kill threw away."""
        return self.seconds_before + time.monotonic() - self.started

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        warmup = self.args.get_warmup_steps(num_training_steps)
        share = partial(share_of_peak, warmup=warmup, steps=num_training_steps)
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, share)
        return self.lr_scheduler

    # --- batches and loss -----------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        batches = DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            sampler=self.order,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )
        prepared: DataLoader = self.accelerator.prepare(batches)
        return prepared

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        if self._replays and isinstance(num_items_in_batch, Tensor):
            self._gradients.attach()
            loss = self._step({**inputs, "num_items_in_batch": num_items_in_batch})
            self._gradients.learn(model)
        else:
            loss = super().training_step(model, inputs, num_items_in_batch)
        self._check_loss()
        rate = float(self.lr_scheduler.get_last_lr()[0])
        self.unchecked = (self.state.global_step + 1, rate, send_to_host(loss))
        self.uncounted.append(loss.detach())
        return loss

    def _step_of(self, inputs: dict[str, Any]) -> Tensor:
        count = inputs.pop("num_items_in_batch")
        loss: Tensor = super().training_step(self.model_wrapped, inputs, count)
        return loss

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not self._replays or args[:1] == (True,) or kwargs.get("prediction_loss_only"):
            return super().prediction_step(model, inputs, *args, **kwargs)
        return self._evaluation(self._prepare_inputs(inputs))

    def _evaluation_of(self, inputs: dict[str, Any]) -> Any:
        return super().prediction_step(self.model_wrapped, inputs, prediction_loss_only=False)

    def _count_losses(self) -> float:
        """The sum of the epoch's losses so far; one after the other, so that a resumed run has the same bits."""
        for value in torch.stack(self.uncounted).tolist() if self.uncounted else ():
            self.epoch_loss += value
        self.uncounted.clear()
        return self.epoch_loss

    def _check_loss(self) -> None:
        """Look at the loss of the step before: to look at this one's would be to wait for the device."""
        if self.unchecked is None:
            return
        (step, rate, arrived), self.unchecked = self.unchecked, None
        if not math.isfinite(loss := arrived()):
            raise TrainingError(
                f"The loss is {loss} at step {step} of {self.state.max_steps}, at a learning rate of "
                f"{rate:.3g} (--learning-rate {self.args.learning_rate:g} at its peak): start again (--overwrite) "
                "with a lower --learning-rate, or with --precision fp32 if it is bf16."
            )

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: it takes a walk over all parameters at every step."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self._check_loss()
        if "loss" in logs:
            # The Trainer's own mean forgets, on resumption, the steps before.
            steps = self.state.max_steps // int(self.args.num_train_epochs)
            losses = gather_object([self._count_losses()])
            logs = {**logs, "loss": sum(losses) / len(losses) / steps}
            self.epoch_loss = 0.0
        super().log(logs, start_time)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def keep_as_best(self) -> None:
        """Hold a copy of what is trained now, for the end of the run and for checkpoints."""
        self.best_trained = _copies(trained_tensors(self.model))

    # Private in the Trainer, which has no public way to write checkpoints other than its own, of pickles without
    # checksums. Holds since transformers 5.17 at the latest, the oldest that `make compat` runs.
    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        self._check_loss()
        generators = gather_object([generator_states()])
        if self.args.should_save:
            trained = trained_tensors(self.model)
            is_of_best = self.best_trained is not None and self.state.best_global_step == self.state.global_step
            snapshot = Snapshot(
                trained,
                trained if is_of_best else self.best_trained,
                self.optimizer.state_dict(),
                self.lr_scheduler.state_dict(),
                generators,
                {"epoch_loss": self._count_losses(), "seconds": self.seconds},
            )
            state = json.dumps(dataclasses.asdict(self.state), default=str)
            write_checkpoint(self.checkpoints, self.state.global_step, snapshot, state)
        self.args.distributed_state.wait_for_everyone()

    # Private in the Trainer too: only its `train(resume_from_checkpoint=...)` begins in the middle of a run, and it
    # takes files of its own; `restore` has read ours. Holds since transformers 5.17 at the latest.
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        pass

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self.resumed is not None:
            self.optimizer.load_state_dict(self.resumed.optimizer)
            self.lr_scheduler.load_state_dict(self.resumed.scheduler)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # With another number of processes than before there is nothing to restore exactly.
        if self.resumed is not None and len(self.resumed.generators) == self.args.world_size:
            restore_generators(self.resumed.generators[self.args.process_index])
        self.resumed = None

    def restore(self, checkpoint: Path) -> None:
        """Take up a run at a checkpoint; `train(resume_from_checkpoint=...)` then goes on from there."""
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE))
        self.resumed = snapshot = read_checkpoint(checkpoint)
        self.load_trained(snapshot.trained)
        self.best_trained = None if snapshot.best is None else _copies(snapshot.best)
        self.epoch_loss = snapshot.progress["epoch_loss"]
        self.seconds_before = snapshot.progress["seconds"]

    def load_trained(self, tensors: Mapping[str, Tensor]) -> None:
        """Put trained tensors, of a checkpoint or of the best epoch, into the model."""
        own = trained_tensors(self.model)
        if own.keys() != tensors.keys():
            raise TrainingError(
                f"The checkpoint in {self.checkpoints} holds other tensors than this model trains; the base model or "
                "a package has changed since: start again with --overwrite."
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything that is trained, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the CPU's memory, where neither training nor a checkpoint that is removed can change them."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def write_history(directory: RunDirectory, lines: Iterable[dict[str, Any]]) -> None:
    """Write a line per epoch."""
    write_text(directory.history, "".join(json.dumps(line) + "\n" for line in lines))


def send_to_host(number: Tensor) -> Callable[[], float]:
    """Start to copy a number of the device to the host; what is returned waits for the copy, and gives the number.

    `number.item()` would wait for everything that the device has been given until then, so also for the step that was
    started after the one whose number it is.
    """
    # Only CUDA's copies are made into memory where it is known when they have arrived.
    copy = number.detach().to("cpu", non_blocking=number.is_cuda)
    if not number.is_cuda:
        return copy.item
    arrival = torch.cuda.Event()
    arrival.record(torch.cuda.current_stream(number.device))

    def arrived() -> float:
        arrival.synchronize()
        return copy.item()

    return arrived


def share_of_peak(step: int, warmup: int, steps: int) -> float:
    """The learning rate of a step, counted from 0, as a share of its peak: it rises for `warmup` steps, then falls.

    The linear schedule of transformers starts at 0, where a step trains nothing; this one is above 0 at every step.
    After the warm-up the two are the same.

    >>> [share_of_peak(step, warmup=1, steps=3) for step in range(3)]
    [0.5, 1.0, 0.5]
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (steps - step) / max(1, steps - warmup)


# --- callbacks ------------------------------------------------------------------------------------------------------


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

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any, model: Any, **_: Any) -> None:
        values = trained_alpha(model)
        logs.update(values)
        state.log_history[-1].update(values)


def log_alpha(trainer: Trainer) -> None:
    """Let a trainer log alpha; put first among the callbacks, so that trackers see it too."""
    trainer.callback_handler.callbacks.insert(0, AlphaLogger())

"""Training a bank of readers: each with its own learning rate, its own seed and the documents it may learn from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prefixprop.attention.backends import why_not
from prefixprop.models.gpu import CudaGraph, can_use_cuda_graphs
from prefixprop.progress import Progress
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import label_losses
from prefixprop.train.recovery import (
    TRAINER_STATE,
    Snapshot,
    TrainingError,
    generator_states,
    is_out_of_memory,
    read_checkpoint,
    restore_generators,
    write_checkpoint,
)
from prefixprop.train.text_states import TextStates
from prefixprop.train.trainer import LengthGroupedOrder, share_of_peak
from prefixprop.tuners.reader_bank import ReaderBank


@dataclass(frozen=True)
class ReaderPlan:
    """How one reader is trained."""

    column: int  # the number of the label column that it answers
    learning_rate: float  # its peak
    seed: int  # what its start is drawn with
    fold: int | None  # the fold that it does not learn from; None: it learns from all documents


@dataclass
class BankTrainer:
    """Trains the readers of a bank side by side; a reader's steps do not depend on the others."""

    bank: ReaderBank
    plans: list[ReaderPlan]  # how each of them is trained
    text: TextStates  # the training set
    # [columns, documents], or [columns, documents, labels] of 0 and 1 where there are several
    labels: NDArray[np.int64]
    folds: NDArray[np.int64]  # the fold of each document for each label column
    settings: RunSettings  # how long the readers are trained, and by which steps
    at_once: tuple[int, int]  # how many documents, and how many readers, a device computes at once
    progress: Progress
    weights: NDArray[np.float32] | None = None  # of classes in the loss, for each label column, see `class_weights`
    losses: list[Tensor] = field(default_factory=list)  # of this epoch
    _passes: dict[tuple, Callable[[dict[str, Tensor]], Tensor]] = field(default_factory=dict)
    step: int = 0

    def __post_init__(self) -> None:
        self.size = self.settings.documents_per_step
        self.order = LengthGroupedOrder(self.text.lengths, self.size, self.settings.seed)
        self.steps_per_epoch = -(-len(self.text.lengths) // self.size)
        self.steps = self.steps_per_epoch * (self.settings.epochs or 0)
        self._prepare()

    def _prepare(self) -> None:
        device, settings = self.text.device, self.settings
        self.bank.to(device)
        rates = torch.tensor([plan.learning_rate for plan in self.plans], device=device)
        parameters = list(self.bank.parameters())
        self.optimizer = ReaderAdamW(parameters, rates, settings.weight_decay, settings.max_grad_norm)
        learns = [self.folds[plan.column] != (-1 if plan.fold is None else plan.fold) for plan in self.plans]
        self._learns = torch.from_numpy(np.stack(learns)).to(device)
        self._columns = torch.tensor([plan.column for plan in self.plans], device=device)
        self._labels = torch.from_numpy(self.labels).to(device)
        self._weights = None if self.weights is None else torch.from_numpy(self.weights).to(device)
        self._passes.clear()

    def train(self, until: int) -> Iterator[int]:
        """Train to a step; yields the number of each step when it is done."""
        warmup = int(np.ceil(self.settings.warmup * self.steps))
        while self.step < until:
            epoch, first = divmod(self.step, self.steps_per_epoch)
            self.order.set_epoch(epoch)
            documents = list(self.order)
            if first == 0:
                self.losses.clear()
            for place in range(first, self.steps_per_epoch):
                if self.step >= until:
                    return
                self._backward(documents[place * self.size : (place + 1) * self.size])
                self.optimizer.step(share_of_peak(self.step, warmup, self.steps))
                self.step += 1
                yield self.step

    def _backward(self, documents: list[int]) -> None:
        """Compute the gradients of a step, of fewer documents or readers at a time if they do not fit the memory."""
        while True:
            try:
                return self._gradients(documents)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                problem = str(error).splitlines()[0]
            # Not in the handler, where the error still holds tensors.
            self._passes.clear()
            at_once, readers = self.at_once
            if at_once == readers == 1:
                raise TrainingError(f"The device is out of memory ({problem}): choose a smaller --max-length.")
            self.at_once = (max(1, at_once // 2), readers) if at_once > 1 else (1, -(-readers // 2))
            self.progress.note(
                f"the device is out of memory; the run continues with {self.at_once[0]} documents and "
                f"{self.at_once[1]} readers at a time"
            )
            if torch.accelerator.is_available():
                torch.accelerator.empty_cache()

    def _gradients(self, documents: list[int]) -> None:
        if not self.bank.training:
            self.bank.train()
            self.bank.backbone.module.train()
        chosen = torch.tensor(documents).to(self.text.device, non_blocking=True)
        count = self._learns[:, chosen].sum(dim=1, keepdim=True).clamp(min=1)
        total = torch.zeros(len(self.bank), device=self.text.device)
        at_once, readers = self.at_once
        for start in range(0, len(documents), at_once):
            part = slice(start, start + at_once)
            inputs = self.text.inputs(documents[part]) | {"documents": chosen[part], "count": count}
            for first in range(0, len(self.bank), readers):
                is_first = start == first == 0
                total[first : first + readers] += self._recorded(self._step, first, is_first)(inputs)
        self.losses.append(total)

    def _recorded(self, run: Callable[..., Tensor], *given: int) -> Callable[[dict[str, Tensor]], Tensor]:
        """`run` with what is given, a function of tensors; on a GPU as a CUDA graph."""
        key = (run.__name__, *given)
        if key not in self._passes:
            known = partial(run, *given)
            self._passes[key] = CudaGraph(known) if can_use_cuda_graphs(self.bank.backbone.model) else known
        return self._passes[key]

    def _step(self, first: int, is_first: bool, inputs: dict[str, Tensor]) -> Tensor:
        """The loss of as many readers as are computed at once; the gradients are added to those of a step.

        What is computed first in a step replaces the gradients of the step before.
        """
        readers = slice(first, first + self.at_once[1])
        logits = self._logits(readers, inputs)
        columns, documents = self._columns[readers], inputs["documents"]
        weights = None if self._weights is None else self._weights[columns]
        loss = label_losses(logits, self._labels[columns][:, documents], weights)
        if loss.dim() == 3:  # of the labels of each document, of which readers have different numbers
            loss = loss.sum(dim=2) / (~self.bank.is_absent[readers]).sum(dim=1, keepdim=True)
        learns = self._learns[readers][:, documents]
        loss = (loss.where(learns, 0) / inputs["count"][readers]).sum(dim=1)
        gradients = torch.autograd.grad(loss.sum(), self.optimizer.parameters)
        (torch._foreach_copy_ if is_first else torch._foreach_add_)(self.optimizer.gradients, gradients)
        return loss.detach()

    def _logits(self, readers: slice | Tensor, inputs: dict[str, Tensor]) -> Tensor:
        text = self.text.text(inputs)
        with self.text.precision():
            return self.bank(text, readers)

    # --- answers --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def answer(self, text: TextStates, documents: Sequence[int], readers: Sequence[int]) -> NDArray[np.float64]:
        """Logits [readers, documents, classes] of some readers of one label column."""
        if self.bank.training:
            self.bank.eval()
            self.bank.backbone.module.eval()
        chosen = torch.tensor(readers, device=text.device)
        classes = self.bank.classes[readers[0]]
        found = np.empty((len(readers), len(documents), classes))
        places = {document: place for place, document in enumerate(documents)}
        for batch in text.batches(documents):
            inputs = text.inputs(batch)
            where = [places[document] for document in batch]
            for start in range(0, len(readers), self.at_once[1]):
                part = slice(start, start + self.at_once[1])
                logits = self._recorded(self._answers)(inputs | {"readers": chosen[part]})
                found[part, where] = logits[..., :classes].double().cpu().numpy()
        return found

    def _answers(self, inputs: dict[str, Tensor]) -> Tensor:
        return self._logits(inputs["readers"], inputs)

    def held_out(self, column: int) -> dict[tuple[float, int], NDArray[np.float64]]:
        """For every learning rate and seed, logits [documents, classes] of the training set.

        Each document is answered by the reader that left its fold out.
        """
        found: dict[tuple[float, int], NDArray[np.float64]] = {}
        of_fold: dict[int, list[int]] = {}
        for index, plan in enumerate(self.plans):
            if plan.column == column and plan.fold is not None:
                of_fold.setdefault(plan.fold, []).append(index)
                found[plan.learning_rate, plan.seed] = np.full(
                    (len(self.text.lengths), self.bank.classes[index]), np.nan
                )
        for fold, readers in of_fold.items():
            documents = np.flatnonzero(self.folds[column] == fold).tolist()
            for reader, logits in zip(readers, self.answer(self.text, documents, readers), strict=True):
                plan = self.plans[reader]
                found[plan.learning_rate, plan.seed][documents] = logits
        return found

    # --- fewer readers, checkpoints -------------------------------------------------------------------------------

    def keep(self, readers: Sequence[int]) -> None:
        """Go on with some of the readers only."""
        chosen = torch.tensor(readers, device=self.text.device)
        state = self.optimizer.state()
        self.bank = self.bank.select(readers)
        self.plans = [self.plans[index] for index in readers]
        self.losses = [loss[chosen] for loss in self.losses]
        self._prepare()
        for name in ("means", "squares"):
            # Heads are narrower where those of the most classes are left out.
            sizes = [len(parameter[0]) for parameter in self.optimizer.parameters]
            state[name] = [tensor[chosen, :size] for tensor, size in zip(state[name], sizes, strict=True)]
        self.optimizer.restore(state)

    def save(self, checkpoints: Path, notes: Mapping[str, Any]) -> None:
        trained = {name: parameter.detach() for name, parameter in self.bank.named_parameters()}
        losses = {"losses": torch.stack(self.losses)} if self.losses else {}
        snapshot = Snapshot(trained | losses, None, self.optimizer.state(), {}, [generator_states()], {})
        state = {"step": self.step, "plans": [asdict(plan) for plan in self.plans], **notes}
        write_checkpoint(checkpoints, self.step, snapshot, json.dumps(state))

    def restore(self, checkpoint: Path) -> dict[str, Any]:
        """Take up training at a checkpoint; returns the notes that were saved with it."""
        state = json.loads((checkpoint / TRAINER_STATE).read_bytes())
        kept = [ReaderPlan(**plan) for plan in state.pop("plans")]
        if len(kept) < len(self.plans):
            self.keep([self.plans.index(plan) for plan in kept])
        snapshot = read_checkpoint(checkpoint)
        tensors = dict(snapshot.trained)
        self.losses = list(tensors.pop("losses").to(self.text.device).unbind(0)) if "losses" in tensors else []
        with torch.no_grad():
            for name, parameter in self.bank.named_parameters():
                parameter.copy_(tensors[name])
        self.optimizer.restore(snapshot.optimizer)
        restore_generators(snapshot.generators[0])
        self.step = state.pop("step")
        return state


class ReaderAdamW:
    """AdamW (Loshchilov & Hutter, 2019) with a learning rate and a clipped gradient norm for each reader.

    Every parameter has the readers as its first dimension. Biases, which have one more, do not decay. The gradients
    are in `gradients`, where they stay: a recorded step writes there.
    """

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Sequence[Tensor], rates: Tensor, decay: float, max_norm: float) -> None:
        self.parameters, self.rates, self.decay, self.max_norm = list(parameters), rates, decay, max_norm
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = 0
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.is_fused = rates.is_cuda and why_not("triton", rates.device) is None

    @torch.no_grad()
    def step(self, share: float) -> None:
        """Apply the gradients; `share` is that of the peak of every learning rate."""
        self.steps += 1
        rates, scales = self.rates * share, torch.ones_like(self.rates)
        if self.max_norm:
            norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in self.gradients]).norm(dim=0)
            scales = (self.max_norm / (norms + 1e-6)).clamp(max=1.0)
        for parameter, *others in zip(self.parameters, self.gradients, self.means, self.squares, strict=True):
            decay = self.decay if parameter.dim() > 2 else 0.0
            self._update((parameter, *others), rates, scales, decay)

    def _update(self, tensors: tuple[Tensor, ...], rates: Tensor, scales: Tensor, decay: float) -> None:
        if self.is_fused:
            from prefixprop.train import triton_adamw  # needs Triton

            return triton_adamw.update(tensors, rates, scales, decay, self.BETAS, self.EPSILON, self.steps)
        parameter, gradient, mean, square = tensors
        first, second = self.BETAS
        rates, scales = (values.view(-1, *(1,) * (parameter.dim() - 1)) for values in (rates, scales))
        gradient = gradient * scales
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        parameter.mul_(1 - rates * decay)
        root = (square / (1 - second**self.steps)).sqrt_().add_(self.EPSILON)
        parameter.sub_(rates / (1 - first**self.steps) * mean / root)
        return None

    def state(self) -> dict[str, Any]:
        return {"means": self.means, "squares": self.squares, "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        for own, kept in zip((*self.means, *self.squares), (*state["means"], *state["squares"]), strict=True):
            own.copy_(kept)

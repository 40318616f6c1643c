"""The readers of a run: a bank that is trained side by side, judged halfway and at the end."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from prefixprop.atomic_files import write_text
from prefixprop.backbones import Backbone, find_backbone
from prefixprop.choices import DEFAULT_BATCH_TOKENS
from prefixprop.data import ClassificationTask
from prefixprop.data.documents import Split
from prefixprop.data.splits import fold_numbers
from prefixprop.evaluate import Part, may_be_dropped
from prefixprop.evaluate.metrics import yes_or_no
from prefixprop.evaluate.mixing import READERS, mean_answer, score
from prefixprop.models.gpu import hold_frozen_in_bfloat16
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory
from prefixprop.train.bank_plan import FOLDS, plan_bank
from prefixprop.train.bank_trainer import BankTrainer, ReaderPlan, Schedule
from prefixprop.train.checkpoints import find_checkpoint
from prefixprop.train.errors import TrainingError
from prefixprop.train.kinds import pad_token
from prefixprop.train.losses import class_weights
from prefixprop.train.plan import RunPlan, use_bf16
from prefixprop.train.text_states import TextStates
from prefixprop.tuners.reader_bank import ReaderBank, ReaderWeights, embedded_cls, new_reader

NO_FOLD = -2  # of documents that no reader leaves out
FEWEST_DEV = 5  # documents; with fewer the folds of the training set judge

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """The documents whose answers choose: those of the training set, each left out once, or the dev set."""

    documents: Split
    labels: NDArray[np.int64]  # of these documents, see `ClassificationTask.label_array`
    folds: NDArray[np.int64]
    is_dev: bool

    @classmethod
    def of(cls, task: ClassificationTask) -> Judged:
        is_dev = len(task.dev) >= FEWEST_DEV
        documents = task.dev if is_dev else task.train
        return cls(documents, task.label_array(documents), fold_numbers(task.name, documents, FOLDS), is_dev)

    @property
    def several_labels(self) -> bool:
        return self.labels.ndim == 2

    def as_answers(self, logits: ArrayLike) -> Array:
        """Logits [..., labels] in the form that `prefixprop.evaluate.mixing` takes."""
        return yes_or_no(logits) if self.several_labels else np.asarray(logits)

    @property
    def headline(self) -> str:
        """The metric that tells how good answers are."""
        return "average_precision" if self.several_labels else "accuracy"

    def score(self, answers: Array) -> float:
        """The accuracy of answers or, with several labels, their average precision."""
        return score(answers, self.labels, "average_precision" if self.several_labels else "micro_f1")

    def in_words(self, found: float) -> str:
        what = "the dev set" if self.is_dev else "held-out documents"
        return f"{self.headline.replace('_', ' ')} {found:.3f} on {what}"


def _stacked_labels(runs: Sequence[RunPlan]) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
    """The labels of the training set for every label column, and the weights of classes, filled up to the most."""
    tasks = [run.classification for run in runs]
    found = [task.label_array(task.train) for task in tasks]
    weights = [class_weights(*each) for each in zip(found, (task.num_labels for task in tasks), strict=True)]
    most = max(task.num_labels for task in tasks)
    filled = [np.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, most - each.shape[-1])]) for each in weights]
    if tasks[0].several_labels:
        found = [np.pad(each, ((0, 0), (0, most - each.shape[1]))) for each in found]
    return np.stack(found), np.stack(filled) if runs[0].settings.class_weights == "balanced" else None


def computing_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Readers:
    """The readers of a run, or of one run for each label column of the same documents, trained side by side."""

    def __init__(self, runs: Sequence[RunPlan], judged: Sequence[Judged], progress: Progress) -> None:
        first = runs[0]
        in_bf16 = use_bf16(first.settings)
        self.settings, self.judged, self.progress = first.settings, judged, progress
        self.classes = [run.classification.num_labels for run in runs]
        device = computing_device()
        model = first.take_model().requires_grad_(False)
        if in_bf16:
            hold_frozen_in_bfloat16(model)
        self.model = model.to(device)
        self.precision: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        if in_bf16:
            self.precision = partial(torch.autocast, device.type, torch.bfloat16)
        self.backbone: Backbone = find_backbone(self.model)
        tokenizer, settings = first.base.tokenizer, self.settings
        assert settings.max_length is not None and settings.epochs is not None and settings.batch_size is not None
        self._states = partial(
            TextStates,
            self.backbone,
            pad_token_id=pad_token(tokenizer),
            precision=self.precision,
            batch_tokens=DEFAULT_BATCH_TOKENS * (4 if device.type == "cuda" else 1),
            max_length=settings.max_length,
        )
        self.documents = first.data.documents
        self.text = self._states(self.documents["train"], keep=settings.keep_states == "auto")
        groups: list[int | None] = [None]
        if not judged[0].is_dev:
            groups = [*range(int(judged[0].folds.max()) + 1), None]
        tokens = float(np.mean(self.text.lengths))
        self.plan = plan_bank(tokens, len(groups), settings.num_virtual_tokens, settings.learning_rate)
        plans = [
            ReaderPlan(column, rate, seed, fold)
            for column in range(len(runs))
            for rate in self.plan.learning_rates
            for fold in groups
            for seed in self.seeds
        ]
        cls = None if tokenizer.cls_token_id is None else embedded_cls(self.backbone, tokenizer.cls_token_id)
        new = partial(new_reader, self.backbone, self.plan.length, cls=cls)
        weights = [new(classes=self.classes[plan.column], seed=plan.seed) for plan in plans]
        bank = ReaderBank(self.backbone, weights, settings.prefix_dropout)
        labels, of_classes = _stacked_labels(runs)
        folds = [one.folds if not one.is_dev else np.full(labels.shape[1], NO_FOLD) for one in judged]
        schedule = Schedule(
            settings.epochs,
            settings.batch_size,
            settings.warmup,
            settings.weight_decay,
            settings.max_grad_norm,
            settings.seed,
        )
        at_once = (settings.device_batch_size * (4 if device.type == "cuda" else 1), len(plans))
        self.trainer = BankTrainer(
            bank, plans, self.text, labels, np.stack(folds), schedule, self.precision, at_once, progress, of_classes
        )
        self.history: list[dict[str, Any]] = []
        self.dropped: list[dict[str, float]] = [{} for _ in runs]  # by label column: a rate and its accuracy halfway
        self.seconds_before, self.started = 0.0, time.monotonic()

    @property
    def seeds(self) -> list[int]:
        return [1000 * self.settings.seed + number for number in range(self.plan.seeds)]

    def rates(self, column: int) -> list[float]:
        """The learning rates that are still trained."""
        return [rate for rate in self.plan.learning_rates if str(rate) not in self.dropped[column]]

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def __str__(self) -> str:
        plan, readers = self.plan, len(self.trainer.plans)
        groups = len({reader.fold for reader in self.trainer.plans})
        parts = [
            f"learning rate {', '.join(f'{rate:g}' for rate in plan.learning_rates)}",
            f"{groups - 1} folds and all documents" if groups > 1 else "all documents",
            f"{plan.seeds} seed{'s' if plan.seeds > 1 else ''}",
        ]
        if len(self.judged) > 1:
            parts.insert(0, f"{len(self.judged)} label columns")
        place = self.text.place
        kept = f"kept in {place.type.upper()} memory" if place else "computed in every epoch, to keep them would take"
        states = f"the text's states are {kept} ({self.text.bytes / 1e9:.1f} GB)"
        tokens = f"{plan.length} virtual token{'s' if plan.length > 1 else ''}"
        return f"{readers} readers of {tokens} ({'; '.join(parts)}); {states}"

    # --- training -------------------------------------------------------------------------------------------------

    def train(self, directory: RunDirectory, asked_to_stop: Callable[[], bool], started: Callable[[], None]) -> None:
        """Train to the end, from the latest checkpoint if there is one; `started` is called after the first step."""
        checkpoint, complaints = find_checkpoint(directory.checkpoints)
        for complaint in complaints:
            self.progress.note(f"{complaint}; the run goes on from an earlier one")
        torch.manual_seed(self.settings.seed)
        if checkpoint is not None:
            self._restore(checkpoint)
        self.progress.line(str(self))
        self.text.fill(self.progress)
        halfway = self.trainer.steps // 2 if len(self.plan.learning_rates) > 2 else 0
        saved = time.monotonic()
        for until in (halfway, self.trainer.steps):
            for step in self.trainer.train(until):
                started()
                self.progress.advance("training", step, self.trainer.steps)
                if step % self.trainer.steps_per_epoch == 0:
                    self._note_epoch(directory)
                every, stop = self.settings.checkpoint_every, asked_to_stop()
                is_due = time.monotonic() - saved >= self.settings.checkpoint_seconds or (every and step % every == 0)
                if is_due or stop:
                    self._save(directory)
                    saved = time.monotonic()
                if stop:
                    raise KeyboardInterrupt
            if 0 < until == halfway == self.trainer.step and not any(self.dropped):
                self._drop()

    def _drop(self) -> None:
        """Leave out learning rates that no choice of one fold by the others ranks among its best two."""
        for column, judged in enumerate(self.judged):
            part = self.part(column)
            for index in may_be_dropped(part, judged.labels, judged.folds, self.settings.choose_by):
                rate = part.candidates[index]
                found = self.dropped[column][str(rate)] = judged.score(part.logits[index])
                self.progress.line(f"learning rate {rate:g} is dropped: {judged.in_words(found)}")
        plans = enumerate(self.trainer.plans)
        kept = [index for index, plan in plans if plan.learning_rate in self.rates(plan.column)]
        if len(kept) < len(self.trainer.plans):
            self.trainer.keep(kept)

    def _note_epoch(self, directory: RunDirectory) -> None:
        step, losses = self.trainer.step, torch.stack(self.trainer.losses).mean(dim=0).tolist()
        by_rate: dict[float, list[float]] = {}
        for plan, loss in zip(self.trainer.plans, losses, strict=True):
            if math.isfinite(loss):  # that of a reader that has diverged is not
                by_rate.setdefault(plan.learning_rate, []).append(loss)
        means = {rate: float(np.mean(found)) for rate, found in by_rate.items()}
        line = {
            "epoch": step // self.trainer.steps_per_epoch,
            "step": step,
            "loss": min(means.values(), default=None),
            "loss_by_learning_rate": {f"{rate:g}": mean for rate, mean in means.items()},
            "readers": len(losses),
            "seconds": round(self.seconds, 3),
        }
        self.history.append(line)
        self.write_history(directory)
        told = "  ".join(f"{mean:.4f} at {rate:g}" for rate, mean in means.items())
        self.progress.line(f"epoch {line['epoch']:>3}  step {step:>6}  loss {told}")

    def write_history(self, directory: RunDirectory) -> None:
        write_text(directory.history, "".join(json.dumps(entry) + "\n" for entry in self.history))

    def _save(self, directory: RunDirectory) -> None:
        notes = {"history": self.history, "dropped": self.dropped, "seconds": self.seconds}
        try:
            self.trainer.save(directory.checkpoints, notes)
        except OSError as error:
            raise TrainingError(
                f"{error.filename}: the checkpoint of step {self.trainer.step} cannot be written ({error.strerror}). "
                "Earlier checkpoints are untouched: make room or fix the folder, then continue with --resume."
            ) from error

    def _restore(self, checkpoint: Path) -> None:
        notes = self.trainer.restore(checkpoint)
        self.history, self.dropped, self.seconds_before = notes["history"], notes["dropped"], notes["seconds"]

    # --- answers --------------------------------------------------------------------------------------------------

    def part(self, column: int) -> Part:
        """The answers to the judged documents, a candidate for each learning rate; seeds are averaged."""
        rates = self.rates(column)
        if self.judged[column].is_dev:
            logits = np.stack([self.answers(column, "dev", rate) for rate in rates])
        else:
            found = self.trainer.left_out(column)
            of_seeds = (np.stack([found[rate, seed] for seed in self.seeds]) for rate in rates)
            logits = np.stack([mean_answer(self.judged[column].as_answers(each)) for each in of_seeds])
        return Part(READERS, tuple(rates), logits)

    def answers(self, column: int, split: str, rate: float) -> Array:
        """Log-probabilities of a split, by the readers of a rate that learned from all, as `Part` has them."""
        text = self._states(self.documents[split], keep=False)
        logits = self.trainer.answer(text, range(len(text.lengths)), self._final(column, rate))
        return mean_answer(self.judged[column].as_answers(logits))

    def _final(self, column: int, rate: float) -> list[int]:
        """The readers of a learning rate that learned from all documents."""
        wanted = [ReaderPlan(column, rate, seed, None) for seed in self.seeds]
        return [self.trainer.plans.index(plan) for plan in wanted]

    def weights(self, column: int, rate: float) -> list[ReaderWeights]:
        return [self.trainer.bank.weights(index) for index in self._final(column, rate)]

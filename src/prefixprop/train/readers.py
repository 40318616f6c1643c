"""The readers of a run: a bank of readers that train together and are evaluated halfway and at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from prefixprop.backbones import find_backbone
from prefixprop.data import ClassificationTask
from prefixprop.data.documents import StoredDocuments
from prefixprop.data.splits import fold_numbers
from prefixprop.evaluate import Part, may_be_dropped
from prefixprop.evaluate.metrics import yes_or_no
from prefixprop.evaluate.mixing import READERS, mean_answer, score
from prefixprop.models.gpu import default_batch_tokens, hold_frozen_in_bfloat16, use_bf16
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory, discard_replaced
from prefixprop.train.bank_trainer import BankTrainer, ReaderPlan
from prefixprop.train.kinds import class_weights, pad_token
from prefixprop.train.plan import RunPlan
from prefixprop.train.recovery import trusted_checkpoint
from prefixprop.train.text_states import TextStates
from prefixprop.train.trainer import GracefulStop, write_history
from prefixprop.tuners.reader_bank import ReaderBank, ReaderWeights, embedded_cls, new_reader

FOLDS = 5
NO_FOLD = -2  # of documents that no reader leaves out
FEWEST_DEV = 5  # documents; with fewer the folds of the training set judge

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """The documents whose answers choose: those of the training set, each left out once, or the dev set."""

    documents: StoredDocuments
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
    """The device of readers."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Readers:
    """The readers of a run, or of one run for each label column of the same documents, trained side by side."""

    def __init__(self, runs: Sequence[RunPlan], judged: Sequence[Judged], progress: Progress) -> None:
        first = runs[0]
        in_bf16 = use_bf16(first.settings.precision)
        self.settings, self.judged, self.progress = first.settings, judged, progress
        device = computing_device()
        model = first.take_model().requires_grad_(False)
        if in_bf16:
            hold_frozen_in_bfloat16(model)
        backbone = find_backbone(model.to(device))
        tokenizer, settings = first.base.tokenizer, self.settings
        self._states = partial(
            TextStates,
            backbone,
            pad_token_id=pad_token(tokenizer),
            precision=partial(torch.autocast, device.type, torch.bfloat16, enabled=in_bf16),
            batch_tokens=default_batch_tokens(device),
            max_length=settings.max_length or 0,
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
        cls = None if tokenizer.cls_token_id is None else embedded_cls(backbone, tokenizer.cls_token_id)
        classes = [run.classification.num_labels for run in runs]
        weights = [new_reader(backbone, self.plan.length, classes[plan.column], plan.seed, cls) for plan in plans]
        bank = ReaderBank(backbone, weights, settings.prefix_dropout)
        labels, of_classes = _stacked_labels(runs)
        folds = np.stack([one.folds if not one.is_dev else np.full(labels.shape[1], NO_FOLD) for one in judged])
        larger = 4 if device.type == "cuda" else 1
        at_once = (settings.device_batch_size * larger, len(plans))
        self.trainer = BankTrainer(bank, plans, self.text, labels, folds, settings, at_once, progress, of_classes)
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
        place = self.text.kept_on
        kept = f"kept in {place.type.upper()} memory" if place else "computed in every epoch"
        states = f"the text's states ({self.text.bytes / 1e9:.1f} GB) are {kept}"
        tokens = f"{plan.length} virtual token{'s' if plan.length > 1 else ''}"
        return f"{readers} readers of {tokens} ({'; '.join(parts)}); {states}"

    # --- training -------------------------------------------------------------------------------------------------

    def train(self, directories: Sequence[RunDirectory], stops: Sequence[GracefulStop] = ()) -> None:
        """Train to the end, from the latest checkpoint if there is one; the first directory has the checkpoints."""
        checkpoints, every = directories[0].checkpoints, self.settings.checkpoint_every
        checkpoint = trusted_checkpoint(checkpoints, self.progress)
        torch.manual_seed(self.settings.seed)
        if checkpoint is not None:
            notes = self.trainer.restore(checkpoint)
            self.history, self.dropped, self.seconds_before = notes["history"], notes["dropped"], notes["seconds"]
        self.progress.line(str(self))
        self.text.fill(self.progress)
        halfway = self.trainer.steps // 2 if len(self.plan.learning_rates) > 2 else 0
        saved = time.monotonic()
        for stop in stops:
            stop.is_training = True
        for until in (halfway, self.trainer.steps):
            for step in self.trainer.train(until):
                for directory in directories:
                    discard_replaced(directory)
                self.progress.advance("training", step, self.trainer.steps)
                if step % self.trainer.steps_per_epoch == 0:
                    self._note_epoch(directories[0])
                is_due = time.monotonic() - saved >= self.settings.checkpoint_seconds or (every and step % every == 0)
                is_asked = any(stop.is_asked for stop in stops)
                if is_due or is_asked:
                    notes = {"history": self.history, "dropped": self.dropped, "seconds": self.seconds}
                    self.trainer.save(checkpoints, notes)
                    saved = time.monotonic()
                if is_asked:
                    raise KeyboardInterrupt
            if 0 < until == halfway == self.trainer.step and not any(self.dropped):
                self._drop()
        for stop in stops:
            stop.is_training = False

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
        write_history(directory, self.history)
        told = "  ".join(f"{mean:.4f} at {rate:g}" for rate, mean in means.items())
        self.progress.line(f"epoch {line['epoch']:>3}  step {step:>6}  loss {told}")

    # --- answers --------------------------------------------------------------------------------------------------

    def part(self, column: int) -> Part:
        """The answers to the judged documents, a candidate for each learning rate; seeds are averaged."""
        rates = self.rates(column)
        if self.judged[column].is_dev:
            logits = np.stack([self.answers(column, "dev", rate) for rate in rates])
        else:
            found = self.trainer.held_out(column)
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


# --- how many readers there are, and how long they are --------------------------------------------------------------

# A reader's virtual tokens cost what so many more tokens of text would cost, at every step. So the rows of a bank, on
# average over the epochs, are at most a sixteenth of the tokens of a document: long documents get several learning
# rates and seeds, short ones get few and short readers.
ROWS_PER_TOKEN = 1 / 16
LEARNING_RATES = (1e-3, 3e-3, 5e-4)  # the first is the one where there is room for one only


class BankPlan(NamedTuple):
    """The readers of a label column: of each learning rate, for each fold and for all documents, and of each seed."""

    length: int  # virtual tokens of a reader
    learning_rates: tuple[float, ...]
    seeds: int

    def rows(self, groups: int) -> float:
        """Rows on average over the epochs, in so many groups of documents; the third rate is dropped halfway."""
        rates = len(self.learning_rates)
        return self.length * self.seeds * groups * (rates + min(rates, 2)) / 2


# Length, learning rates, seeds; most readers last. Three seeds were as good as eight, and longer prefixes no better.
_SIZES = ((1, 1, 1), (1, 1, 2), (1, 2, 2), (1, 2, 3), (2, 2, 3), (2, 3, 3))
PLANS = tuple(BankPlan(length, LEARNING_RATES[:rates], seeds) for length, rates, seeds in _SIZES)


def plan_bank(
    mean_tokens: float, groups: int, length: int | None = None, learning_rate: float | None = None
) -> BankPlan:
    """The largest plan that documents of so many tokens on average allow; what is given is as given."""
    given: dict[str, Any] = {} if learning_rate is None else {"learning_rates": (learning_rate,)}
    plans = [plan._replace(length=length or plan.length, **given) for plan in PLANS]
    fitting = (plan for plan in reversed(plans) if plan.rows(groups) <= mean_tokens * ROWS_PER_TOKEN)
    return next(fitting, plans[0])

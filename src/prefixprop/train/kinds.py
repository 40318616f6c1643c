"""The kinds of tasks: how their examples become batches, a model and predictions.

The row of a task names its kind (`TaskSource.kind`). A new kind is a subclass of `TaskKind` and an entry in `KINDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from peft import PeftConfig, PeftModel, TaskType, get_peft_model
from torch import Tensor
from torch.utils.data import Dataset, Subset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prefixprop.backbones import find_backbone
from prefixprop.data import (
    SPLIT_NAMES,
    CandidateCollator,
    ClassificationTask,
    DocumentCollator,
    QuestionTask,
    Task,
    WikiHopDataset,
    add_special_tokens,
)
from prefixprop.data.documents import CALIBRATION, IN_WORDS, StoredDocuments
from prefixprop.data.splits import dev_folds
from prefixprop.data.tasks import DOCUMENTS, QUESTIONS
from prefixprop.data.tokens import Frame, StoredTokens, TokenIds, count_words, shredded, stored_tokens
from prefixprop.evaluate import PredictionSet, Temperature, decide, measure_baseline, question_predictions
from prefixprop.evaluate.baseline import measure_bm25
from prefixprop.models import adapt_candidate_scorer
from prefixprop.models.base_model import BaseModel
from prefixprop.settings.run_settings import RunSettings

_TEXTS_LOOKED_AT = 200


@dataclass(frozen=True)
class EvaluationSplit:
    """A split to evaluate on: `dataset` has the longest items first; `predictions` restores the order.

    `folds` divide a dev set whose documents can have several labels, for thresholds from the other folds.
    """

    dataset: Dataset[Any]
    predictions: Callable[[NDArray[np.float64]], PredictionSet]
    folds: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RunData:
    """All that a run reads."""

    label_names: tuple[str, ...] | None  # the labels of a classification task; None for questions
    train: Dataset[Any]  # the training set
    train_lengths: tuple[int, ...]  # how many tokens are read of each of its items
    train_totals: tuple[int, ...]  # how many each has, before it is cut
    # The dev set, which may be a fold of the training set, what was set aside of it for calibration, and the test set
    # unless it is empty.
    evaluated: dict[str, EvaluationSplit]
    collator: Callable[..., Any]  # makes batches
    notes: tuple[str, ...]  # what a user should know about the data
    unread: str | None = None  # what is cut off the documents; None if nothing is
    loss: Callable[..., Tensor] | None = None  # the loss of a step; None: the model computes it
    # The tokens of every document by split, in the order of the task; empty for questions.
    documents: Mapping[str, Sequence[TokenIds]] = field(default_factory=dict)
    several_labels: bool = False  # whether a document can have several labels


class TaskKind(ABC):
    """What training and prediction need to know about the examples of a task."""

    @abstractmethod
    def encode(self, task: Task, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
        """Encode all splits, in the settings' `max_length`, which must be set."""

    @abstractmethod
    def new_model(
        self, base: BaseModel, label_names: tuple[str, ...] | None, settings: RunSettings
    ) -> PreTrainedModel:
        """The base model with a new head."""

    @abstractmethod
    def freeze_encoder(self, model: Any) -> None:
        """Leave only the head to be trained."""

    @abstractmethod
    def adapt(self, model: Any, config: PeftConfig) -> PeftModel:
        """Put an adapter on a new model; the head is trained with it."""

    def baseline(self, task: Task, settings: RunSettings) -> dict[str, Any] | None:
        """The metrics of a simple model on the same examples; None where there is none."""
        return None


# --- documents ------------------------------------------------------------------------------------------------------


class DocumentClassification(TaskKind):
    """Documents with one label each, or several; the head reads [CLS] or the prefix."""

    def encode(self, task: Task, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
        assert isinstance(task, ClassificationTask) and settings.max_length is not None
        frame = Frame.of(tokenizer, settings.max_length)
        splits = {name: task.split(name) for name in (*SPLIT_NAMES, CALIBRATION) if task.split(name)}
        tokens = _tokens(splits, tokenizer, frame.room)
        datasets = {
            name: DocumentDataset(*tokens[name], task.label_array(documents), frame)
            for name, documents in splits.items()
        }
        notes = list(dict.fromkeys(dataset.tokens.note for dataset in datasets.values() if dataset.tokens.note))
        notes += task.notes()
        if settings.reads_tokens and (told := _shredded(datasets["train"], task.train.texts)):
            notes.append(told)
        return RunData(
            label_names=task.label_names,
            train=datasets["train"],
            train_lengths=tuple(datasets["train"].lengths.tolist()),
            train_totals=tuple(datasets["train"].totals.tolist()),
            evaluated={
                name: _document_split(name, task, datasets[name])
                for name in ("dev", CALIBRATION, "test")
                if name in splits
            },
            collator=DocumentCollator(pad_token(tokenizer)),
            notes=tuple(notes),
            unread=_unread(datasets, settings.max_length) if settings.reads_tokens else None,
            loss=document_loss(
                class_weights(datasets["train"].labels, task.num_labels)
                if settings.class_weights == "balanced"
                else None
            ),
            documents={name: TokensOf(dataset) for name, dataset in datasets.items()},
            several_labels=task.several_labels,
        )

    def new_model(
        self, base: BaseModel, label_names: tuple[str, ...] | None, settings: RunSettings
    ) -> PreTrainedModel:
        assert label_names is not None
        return base.classifier(label_names)

    def freeze_encoder(self, model: Any) -> None:
        model.base_model.requires_grad_(False)

    def adapt(self, model: Any, config: PeftConfig) -> PeftModel:
        config.task_type = TaskType.SEQ_CLS
        # peft trains `classifier` by itself; ModernBERT has more between the encoder and that.
        config.modules_to_save = [name for name in find_backbone(model).head_modules if name != "classifier"] or None
        return get_peft_model(model, config)

    def baseline(self, task: Task, settings: RunSettings) -> dict[str, Any] | None:
        assert isinstance(task, ClassificationTask)
        return measure_baseline(task, settings.tfidf_class_weight)


class DocumentDataset(Dataset[dict[str, Any]]):
    """Documents of a split as the model reads them: cut, with special tokens, each made when it is asked for.

    `places` says where in `tokens` they are; a document that was cut has one token there that is not read.
    """

    def __init__(
        self, tokens: StoredTokens, places: NDArray[np.int64], labels: NDArray[np.int64], frame: Frame
    ) -> None:
        self.tokens, self.places, self.labels, self.frame = tokens, places, labels, frame
        lengths = tokens.lengths[places]
        self.totals = tokens.totals[places] + frame.size
        self.cut = int((lengths > frame.room).sum())
        self.lengths: NDArray[np.int64] = np.maximum(np.minimum(lengths, frame.room) + frame.size, 1)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        content = self.tokens[int(self.places[index])]
        return {"input_ids": self.frame.around(content[: self.frame.room]), "labels": self.labels[index].tolist()}


@dataclass(frozen=True)
class TokensOf(Sequence[TokenIds]):
    """The tokens of a data set's documents, each made when it is asked for."""

    dataset: DocumentDataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> TokenIds:  # type: ignore[override]
        tokens: TokenIds = self.dataset[index]["input_ids"]
        return tokens


def _tokens(
    splits: Mapping[str, StoredDocuments], tokenizer: PreTrainedTokenizerBase, limit: int
) -> dict[str, tuple[StoredTokens, NDArray[np.int64]]]:
    """For every split the stored tokens that hold its documents, and their places there.

    Splits of one source, such as the folds of a file, share their tokens, so that all folds find the same entry.
    """
    found: dict[str, tuple[StoredTokens, NDArray[np.int64]]] = {}
    for source in dict.fromkeys(documents.source for documents in splits.values()):
        parts = {name: documents.places for name, documents in splits.items() if documents.source == source}
        places = np.unique(np.concatenate(list(parts.values())))
        read = replace(splits[next(iter(parts))], places=places)
        tokens = stored_tokens(read.texts, tokenizer, read.identity, limit)
        found |= {name: (tokens, np.searchsorted(places, part)) for name, part in parts.items()}
    return found


def _unread(datasets: Mapping[str, DocumentDataset], max_length: int) -> str | None:
    """What is cut off, in one sentence for all splits; None if nothing is."""
    cut = [f"{each.cut:,} of {len(each):,} {IN_WORDS[name]}" for name, each in datasets.items() if each.cut]
    if not cut:
        return None
    read = sum(int(each.lengths.sum()) for each in datasets.values())
    total = sum(int(each.totals.sum()) for each in datasets.values())
    return (
        f"{', '.join(cut)} documents are longer than {max_length:,} tokens and are cut there: "
        f"{1 - read / total:.0%} of all tokens are not read"
    )


def _shredded(dataset: DocumentDataset, texts: Sequence[str]) -> str | None:
    sample = range(0, len(texts), max(1, len(texts) // _TEXTS_LOOKED_AT))
    tokens = dataset.totals[sample] - dataset.frame.size
    return shredded(int(tokens.sum()), sum(count_words(texts[index]) for index in sample))


def _document_split(name: str, task: ClassificationTask, dataset: DocumentDataset) -> EvaluationSplit:
    order = longest_first(dataset.lengths.tolist())
    documents = task.split(name)
    folds = dev_folds(documents) if task.several_labels and name == "dev" else None

    def predictions(logits: NDArray[np.float64]) -> PredictionSet:
        found = PredictionSet.of_documents(task, documents, np.asarray(logits)[np.argsort(order)])
        return found if folds is None else decide({"dev": found}, Temperature(1.0), folds)[0]["dev"]

    return EvaluationSplit(Subset(dataset, order), predictions, folds)


def class_weights(labels: NDArray[np.int64], num_labels: int) -> NDArray[np.float32]:
    """The weights of scikit-learn's `class_weight="balanced"`: [classes], or [2, labels] for no and yes.

    A class has documents / (classes · documents of the class), so that all classes weigh the same together. One
    without documents has 1.
    """
    if labels.ndim == 1:
        counts, classes = np.bincount(labels, minlength=num_labels), len(np.unique(labels))
    else:
        counts, classes = np.stack([len(labels) - labels.sum(axis=0), labels.sum(axis=0)]), 2
    balanced = len(labels) / (classes * np.maximum(counts, 1))
    known = counts > 0 if labels.ndim == 1 else (counts > 0).all(axis=0)
    return np.where(known, balanced, 1.0).astype(np.float32)


def label_losses(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The loss of every document, or of every label of every document, in the shape of `labels`.

    With one label it is cross-entropy. Where a document can have several, every label is a yes/no question, and the
    loss is the mean binary cross-entropy over them.

    `logits` are [..., classes]; `labels` are [...], or [..., classes] of 0 and 1. `weights` are those of
    `class_weights`, or several of them, one for each entry of the first dimension.
    """
    if labels.dim() < logits.dim():
        losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view_as(labels)
        if weights is None:
            return losses
        return losses * (weights[labels] if weights.dim() == 1 else weights.gather(1, labels))
    # A reader of fewer labels than others has minus infinity where it has none, and no loss there.
    absent = logits == -torch.inf
    losses = F.binary_cross_entropy_with_logits(
        logits.masked_fill(absent, 0), labels.to(logits.dtype), reduction="none"
    )
    if weights is not None:
        no, yes = weights.unbind(-2)
        if weights.dim() == 3:
            no, yes = no[:, None], yes[:, None]
        losses = losses * torch.where(labels > 0, yes, no)
    return losses.masked_fill(absent, 0)


def document_loss(weights: NDArray[np.float32] | None = None) -> Callable[..., Tensor]:
    """The loss of a step for the Trainer, averaged over all documents of the step, or all of their labels.

    The model's own loss is a mean over a device's batch: documents of a smaller last batch would count for more.
    """
    table = None if weights is None else torch.from_numpy(weights)

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        nonlocal table
        table = None if table is None else table.to(labels.device)
        # The Trainer counts labels, of which there may be several for a document.
        count = labels.numel() if num_items_in_batch is None else num_items_in_batch
        return label_losses(outputs.logits.float(), labels, table).sum() / count

    return loss


# --- questions ------------------------------------------------------------------------------------------------------


class CandidateChoice(TaskKind):
    """Questions over many documents; the answer is one of several candidates. The model computes its loss itself."""

    def encode(self, task: Task, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
        assert isinstance(task, QuestionTask) and settings.max_length is not None
        add_special_tokens(tokenizer)
        datasets = {
            name: WikiHopDataset(
                task.split(name),
                tokenizer,
                settings.max_length,
                shuffle=name == "train",
                seed=settings.seed,
                max_chunks=settings.max_chunks,
            )
            for name in SPLIT_NAMES
        }
        notes = []
        for name, dataset in datasets.items():
            if dataset.skipped:
                consequence = "are not trained on" if name == "train" else "count as wrong"
                count = f"{len(dataset.skipped):,} of {len(task.split(name)):,} {IN_WORDS[name]} questions"
                notes.append(
                    f"{count} have candidates that leave no room for supports in {settings.max_length} tokens; they "
                    f"{consequence}"
                )
            if dataset.cut:
                lost = f"questions lose supports to --max-chunks {settings.max_chunks}"
                notes.append(f"{len(dataset.cut):,} {IN_WORDS[name]} {lost}")
        return RunData(
            label_names=None,
            train=datasets["train"],  # type: ignore[arg-type]
            train_lengths=datasets["train"].lengths,
            train_totals=datasets["train"].lengths,
            evaluated={
                name: _question_split(name, task, datasets[name]) for name in ("dev", "test") if task.split(name)
            },
            collator=CandidateCollator(pad_token(tokenizer), tokenizer.padding_side),
            notes=tuple(notes),
        )

    def new_model(
        self, base: BaseModel, label_names: tuple[str, ...] | None, settings: RunSettings
    ) -> PreTrainedModel:
        return base.candidate_scorer(add_special_tokens(base.tokenizer), settings.chunk_reduction)

    def freeze_encoder(self, model: Any) -> None:
        model.freeze_encoder()

    def adapt(self, model: Any, config: PeftConfig) -> PeftModel:
        return adapt_candidate_scorer(model, config)

    def baseline(self, task: Task, settings: RunSettings) -> dict[str, Any] | None:
        assert isinstance(task, QuestionTask)
        return measure_bm25(task) if settings.task_row.has_baseline else None


def _question_split(name: str, task: QuestionTask, dataset: WikiHopDataset) -> EvaluationSplit:
    order = longest_first(dataset.lengths)
    read = [dataset.questions[index] for index in order]
    questions = task.split(name)

    def predictions(logits: NDArray[np.float64]) -> PredictionSet:
        return question_predictions(questions, {question.id: row for question, row in zip(read, logits, strict=True)})

    return EvaluationSplit(Subset(dataset, order), predictions)  # type: ignore[arg-type]


# --- both -----------------------------------------------------------------------------------------------------------

KINDS: dict[str, TaskKind] = {DOCUMENTS: DocumentClassification(), QUESTIONS: CandidateChoice()}


def kind_of(settings: RunSettings) -> TaskKind:
    """The kind of the settings' task."""
    return KINDS[settings.task_row.kind]


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id of the padding token."""
    pad: Any = tokenizer.pad_token_id
    if pad is None:
        raise ValueError(
            f"The tokenizer of {tokenizer.name_or_path!r} has no padding token, so documents of different lengths "
            "make no batch; set pad_token in its tokenizer_config.json."
        )
    return int(pad)


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The indices of items, the longest item first."""
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])

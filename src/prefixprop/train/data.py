"""The data of a run: encoded documents or questions, and the way from logits back to predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset
from transformers import PreTrainedTokenizerBase

from prefixprop.data import (
    SPLIT_NAMES,
    CandidateCollator,
    ClassificationTask,
    DocumentCollator,
    QuestionTask,
    Task,
    WikiHopDataset,
)
from prefixprop.data.cache import RaggedArray
from prefixprop.data.documents import IN_WORDS, Split, StoredDocuments, ids_of, labels_of
from prefixprop.data.encoding import Frame, stored_tokens
from prefixprop.evaluate import PredictionSet, question_predictions
from prefixprop.settings.run_settings import RunSettings


@dataclass(frozen=True)
class EvaluationSplit:
    """A split to evaluate on: `dataset` has the longest items first; `predictions` restores the order."""

    name: str
    dataset: Dataset[Any]
    predictions: Callable[[NDArray[np.float64]], PredictionSet]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RunData:
    """All that a run reads.

    Attributes:
        label_names: The labels of a classification task; None for questions.
        train: The training set.
        train_lengths: How many tokens each of its items has.
        evaluated: The dev set, which may be a fold of the training set, and the test set unless it is empty.
        collator: Makes batches.
        notes: What a user should know about the data.
    """

    label_names: tuple[str, ...] | None
    train: Dataset[Any]
    train_lengths: tuple[int, ...]
    evaluated: dict[str, EvaluationSplit]
    collator: Callable[..., Any]
    notes: tuple[str, ...]


def encode_task(task: Task, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
    """Encode all splits, in the settings' `max_length`, which must be set."""
    if isinstance(task, QuestionTask):
        return _encode_questions(task, tokenizer, settings)
    return _encode_documents(task, tokenizer, settings)


class DocumentDataset(Dataset[dict[str, Any]]):
    """Documents of a split as the model reads them: cut, with special tokens, each made when it is asked for.

    `places` says where in `tokens` they are; a document that was cut has one token there that is not read.
    """

    def __init__(
        self, tokens: RaggedArray, places: NDArray[np.int64], labels: NDArray[np.int64], frame: Frame
    ) -> None:
        self.tokens, self.places, self.labels, self.frame = tokens, places, labels, frame
        lengths = tokens.lengths[places]
        self.cut = int((lengths > frame.room).sum())
        self.lengths: NDArray[np.int64] = np.maximum(np.minimum(lengths, frame.room) + frame.size, 1)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        content = self.tokens[int(self.places[index])]
        return {"input_ids": self.frame.around(content[: self.frame.room]), "labels": int(self.labels[index])}


def _tokens(
    splits: Mapping[str, Split], tokenizer: PreTrainedTokenizerBase, limit: int
) -> dict[str, tuple[RaggedArray, NDArray[np.int64]]]:
    """For every split the stored tokens that hold its documents, and their places there.

    Splits of one source, such as the folds of a file, share their tokens, so that all folds find the same entry.
    """
    found: dict[str, tuple[RaggedArray, NDArray[np.int64]]] = {}
    packed = {name: StoredDocuments.packed(documents) for name, documents in splits.items()}
    for source in dict.fromkeys(documents.source for documents in packed.values()):
        parts = {name: documents.places for name, documents in packed.items() if documents.source == source}
        places = np.unique(np.concatenate(list(parts.values())))
        read = replace(packed[next(iter(parts))], places=places)
        tokens = stored_tokens(read.texts, tokenizer, read.identity, limit, len(read))
        found |= {name: (tokens, np.searchsorted(places, part)) for name, part in parts.items()}
    return found


def _encode_documents(task: ClassificationTask, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
    assert settings.max_length is not None
    frame = Frame.of(tokenizer, settings.max_length)
    splits = {name: task.split(name) for name in SPLIT_NAMES if task.split(name)}
    tokens = _tokens(splits, tokenizer, frame.room)
    datasets = {
        name: DocumentDataset(*tokens[name], np.array(labels_of(documents), dtype=np.int64), frame)
        for name, documents in splits.items()
    }
    notes = list(dict.fromkeys(dataset.tokens.note for dataset in datasets.values() if dataset.tokens.note))
    notes += task.notes()
    notes += [
        f"{dataset.cut:,} of {len(dataset):,} {IN_WORDS[name]} documents are longer than {settings.max_length} "
        "tokens and are cut there"
        for name, dataset in datasets.items()
        if dataset.cut
    ]
    return RunData(
        label_names=task.label_names,
        train=datasets["train"],
        train_lengths=tuple(datasets["train"].lengths.tolist()),
        evaluated={
            name: _document_split(name, splits[name], task.label_names, datasets[name])
            for name in ("dev", "test")
            if name in splits
        },
        collator=DocumentCollator(_pad_token(tokenizer), tokenizer.padding_side),
        notes=tuple(notes),
    )


def _document_split(
    name: str, documents: Split, label_names: tuple[str, ...], dataset: DocumentDataset
) -> EvaluationSplit:
    order = _longest_first(dataset.lengths.tolist())

    def predictions(logits: NDArray[np.float64]) -> PredictionSet:
        return PredictionSet(
            tuple(ids_of(documents)),
            tuple(labels_of(documents)),
            np.asarray(logits, dtype=np.float64)[np.argsort(order)],
            label_names=label_names,
        )

    return EvaluationSplit(name, Subset(dataset, order), predictions)


def _encode_questions(task: QuestionTask, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
    assert settings.max_length is not None
    datasets = {
        name: WikiHopDataset(
            task.split(name),
            tokenizer,
            settings.max_length,
            shuffle=name == "train",
            seed=settings.seed,
            max_chunks=settings.max_chunks,
            oversized="skip",
        )
        for name in SPLIT_NAMES
    }
    notes = []
    for name, dataset in datasets.items():
        if dataset.skipped:
            consequence = "are not trained on" if name == "train" else "count as wrong"
            notes.append(
                f"{len(dataset.skipped):,} of {len(task.split(name)):,} {IN_WORDS[name]} questions have candidates "
                f"that leave no room for supports in {settings.max_length} tokens; they {consequence}"
            )
        if dataset.cut:
            lost = f"questions lose supports to --max-chunks {settings.max_chunks}"
            notes.append(f"{len(dataset.cut):,} {IN_WORDS[name]} {lost}")
    return RunData(
        label_names=None,
        train=datasets["train"],  # type: ignore[arg-type]
        train_lengths=datasets["train"].lengths,
        evaluated={name: _question_split(name, task, datasets[name]) for name in ("dev", "test") if task.split(name)},
        collator=CandidateCollator(_pad_token(tokenizer), tokenizer.padding_side),
        notes=tuple(notes),
    )


def _question_split(name: str, task: QuestionTask, dataset: WikiHopDataset) -> EvaluationSplit:
    order = _longest_first(dataset.lengths)
    read = [dataset.questions[index] for index in order]
    questions = task.split(name)

    def predictions(logits: NDArray[np.float64]) -> PredictionSet:
        return question_predictions(questions, {question.id: row for question, row in zip(read, logits, strict=True)})

    return EvaluationSplit(name, Subset(dataset, order), predictions)  # type: ignore[arg-type]


def _pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    pad: Any = tokenizer.pad_token_id
    if pad is None:
        raise ValueError(
            f"The tokenizer of {tokenizer.name_or_path!r} has no padding token, so documents of different lengths "
            "make no batch; set pad_token in its tokenizer_config.json."
        )
    return int(pad)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])

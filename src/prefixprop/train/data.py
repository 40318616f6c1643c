"""What a Trainer reads, encoded documents or questions, and from its logits back to predictions."""

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
from prefixprop.data.documents import Split, StoredDocuments, ids_of, labels_of
from prefixprop.data.encoding import Frame
from prefixprop.data.token_store import TokenLists, stored_tokens
from prefixprop.evaluate import PredictionSet, question_predictions
from prefixprop.settings.run_settings import RunSettings


@dataclass(frozen=True)
class EvaluationSplit:
    """A split to be predicted: `dataset` is in an order good for batching, which `predictions` undoes."""

    name: str
    dataset: Dataset[Any]
    predictions: Callable[[NDArray[np.float64]], PredictionSet]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RunData:
    """All that a run reads.

    Attributes:
        label_names: Of a classification task; None for questions.
        train: What the Trainer trains on, and `train_lengths`, how many tokens each item has.
        evaluated: dev, which may be a left-out fold of train, and test where it is not empty.
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

    `places` says where in `tokens` they are.
    """

    def __init__(
        self, tokens: TokenLists, places: NDArray[np.int64], labels: NDArray[np.int64], frame: Frame
    ) -> None:
        self.tokens, self.places, self.labels, self.frame = tokens, places, labels, frame

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        content = self.tokens[int(self.places[index])]
        return {"input_ids": self.frame.around(content[: self.frame.room]), "labels": int(self.labels[index])}

    @property
    def uncut_lengths(self) -> NDArray[np.int64]:
        return self.tokens.lengths[self.places] + self.frame.size

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.minimum(self.uncut_lengths, self.frame.room + self.frame.size)


def _tokens(
    splits: Mapping[str, Split], tokenizer: PreTrainedTokenizerBase
) -> dict[str, tuple[TokenLists, NDArray[np.int64]]]:
    """For every split the lists of tokens with its documents, and their places there.

    Splits of one source, such as the folds of a file, share their lists, so that all folds find the same ones.
    """
    found: dict[str, tuple[TokenLists, NDArray[np.int64]]] = {}
    packed = {name: StoredDocuments.packed(documents) for name, documents in splits.items()}
    for source in dict.fromkeys(documents.source for documents in packed.values()):
        parts = {name: documents.places for name, documents in packed.items() if documents.source == source}
        places = np.unique(np.concatenate(list(parts.values())))
        read = replace(packed[next(iter(parts))], places=places)
        tokens = stored_tokens(read.texts, tokenizer, read.identity, len(read))
        found |= {name: (tokens, np.searchsorted(places, part)) for name, part in parts.items()}
    return {name: found[name] for name in splits}


def _encode_documents(task: ClassificationTask, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
    assert settings.max_length is not None
    frame = Frame.of(tokenizer, settings.max_length)
    splits = {name: task.split(name) for name in SPLIT_NAMES if task.split(name)}
    datasets = {
        name: DocumentDataset(tokens, places, np.array(labels_of(splits[name]), dtype=np.int64), frame)
        for name, (tokens, places) in _tokens(splits, tokenizer).items()
    }
    notes = list(dict.fromkeys(dataset.tokens.note for dataset in datasets.values() if dataset.tokens.note))
    notes += task.notes()
    for name, dataset in datasets.items():
        if cut := int((dataset.uncut_lengths > settings.max_length).sum()):
            notes.append(
                f"{cut:,} of {len(dataset):,} {name} documents are longer than {settings.max_length} tokens "
                "and are cut there"
            )
    missing = set(range(task.num_labels)) - set(labels_of(task.train))
    if missing:
        names = ", ".join(task.label_names[label] for label in sorted(missing))
        notes.append(f"no train document has the label {names}")
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
                f"{len(dataset.skipped):,} of {len(task.split(name)):,} {name} questions have candidates that leave "
                f"no room for supports in {settings.max_length} tokens; they {consequence}"
            )
        if dataset.cut:
            notes.append(f"{len(dataset.cut):,} {name} questions lose supports to --max-chunks {settings.max_chunks}")
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

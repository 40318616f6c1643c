"""What a Trainer reads, encoded documents or questions, and from its logits back to predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset
from transformers import PreTrainedTokenizerBase

from prefixprop.evaluation import PredictionSet, question_predictions
from prefixprop.settings.run_settings import RunSettings
from prefixprop.tasks import (
    SPLIT_NAMES,
    CandidateCollator,
    ClassificationTask,
    Document,
    DocumentCollator,
    QuestionTask,
    Task,
    WikiHopDataset,
    encode_documents,
)


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


def _encode_documents(task: ClassificationTask, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
    assert settings.max_length is not None
    notes = task.notes()
    datasets: dict[str, list[dict[str, Any]]] = {}
    for name in SPLIT_NAMES:
        documents = task.split(name)
        encoded = encode_documents([document.text for document in documents], tokenizer, settings.max_length)
        if cut := encoded.over_limit():
            notes.append(
                f"{len(cut):,} of {len(documents):,} {name} documents are longer than {settings.max_length} tokens "
                "and are cut there"
            )
        datasets[name] = [
            {"input_ids": ids, "labels": document.label}
            for ids, document in zip(encoded.input_ids, documents, strict=True)
        ]
    missing = set(range(task.num_labels)) - {document.label for document in task.train}
    if missing:
        names = ", ".join(task.label_names[label] for label in sorted(missing))
        notes.append(f"no train document has the label {names}")
    return RunData(
        label_names=task.label_names,
        train=datasets["train"],  # type: ignore[arg-type]
        train_lengths=tuple(len(item["input_ids"]) for item in datasets["train"]),
        evaluated={
            name: _document_split(name, task.split(name), task.label_names, datasets[name])
            for name in ("dev", "test")
            if datasets[name]
        },
        collator=DocumentCollator(_pad_token(tokenizer), tokenizer.padding_side),
        notes=tuple(notes),
    )


def _document_split(
    name: str, documents: Sequence[Document], label_names: tuple[str, ...], items: list[dict[str, Any]]
) -> EvaluationSplit:
    order = _longest_first([len(item["input_ids"]) for item in items])

    def predictions(logits: NDArray[np.float64]) -> PredictionSet:
        return PredictionSet(
            tuple(document.id for document in documents),
            tuple(document.label for document in documents),
            np.asarray(logits, dtype=np.float64)[np.argsort(order)],
            label_names=label_names,
        )

    return EvaluationSplit(name, [items[index] for index in order], predictions)  # type: ignore[arg-type]


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

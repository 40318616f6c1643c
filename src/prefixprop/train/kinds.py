"""The kinds of tasks: how their examples become batches, a model and predictions.

The row of a task names its kind (`TaskSource.kind`). A new kind is a subclass of `TaskKind` and an entry in `KINDS`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peft import PeftConfig, PeftModel
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prefixprop.data import Task
from prefixprop.data.tasks import DOCUMENTS, QUESTIONS
from prefixprop.data.tokens import TokenIds
from prefixprop.evaluate import PredictionSet
from prefixprop.models.base_model import BaseModel
from prefixprop.settings.run_settings import RunSettings


@dataclass(frozen=True)
class EvaluationSplit:
    """A split to evaluate on: `dataset` has the longest items first; `predictions` restores the order.

    `folds` divide a dev set whose documents can have several labels, for thresholds from the other folds.
    """

    name: str
    dataset: Dataset[Any]
    predictions: Callable[[NDArray[np.float64]], PredictionSet]
    folds: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RunData:
    """All that a run reads.

    Attributes:
        label_names: The labels of a classification task; None for questions.
        train: The training set.
        train_lengths: How many tokens are read of each of its items.
        train_totals: How many each has, where some are cut; otherwise empty.
        evaluated: The dev set, which may be a fold of the training set, what was set aside of it for calibration, and
            the test set unless it is empty.
        collator: Makes batches.
        notes: What a user should know about the data.
        unread: What is cut off the documents; None if nothing is.
        loss: The loss of a step; None: the model computes it.
        documents: The tokens of every document by split, in the order of the task; empty for questions.
        several_labels: Whether a document can have several labels.
    """

    label_names: tuple[str, ...] | None
    train: Dataset[Any]
    train_lengths: tuple[int, ...]
    evaluated: dict[str, EvaluationSplit]
    collator: Callable[..., Any]
    notes: tuple[str, ...]
    unread: str | None = None
    loss: Callable[..., Tensor] | None = None
    documents: Mapping[str, Sequence[TokenIds]] = field(default_factory=dict)
    several_labels: bool = False
    train_totals: tuple[int, ...] = ()


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


# By name, and imported when used: a kind is made of what stands above.
KINDS: dict[str, str] = {
    DOCUMENTS: "prefixprop.train.documents:DocumentClassification",
    QUESTIONS: "prefixprop.train.questions:CandidateChoice",
}


def kind_of(settings: RunSettings) -> TaskKind:
    """The kind of the settings' task."""
    module, _, name = KINDS[settings.task_row.kind].partition(":")
    kind: TaskKind = getattr(importlib.import_module(module), name)()
    return kind


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

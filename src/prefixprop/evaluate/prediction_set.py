"""A model's predictions of the documents of one split: the logits, and the labels where they are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.data.wikihop import Question
from prefixprop.evaluate.calibration import DEFAULT_BINS
from prefixprop.evaluate.metrics import evaluate_predictions
from prefixprop.evaluate.predictions import checked_logits, checked_probabilities, softmax
from prefixprop.evaluate.temperature import Temperature


@dataclass(frozen=True, eq=False)
class PredictionSet:
    """Predictions of one split, checked on creation; probabilities are always the softmax of the logits.

    `logits` is [documents, classes]; a class of probability 0 has minus infinity. `labels` are indices of classes, or
    None where a document has no label. The classes have either `label_names`, the same for every document, or
    `candidates`, which differ between questions; a question with fewer candidates than there are columns of logits
    has minus infinity in the other columns.
    """

    ids: tuple[str, ...]
    labels: tuple[int | None, ...]
    logits: NDArray[np.float64]
    label_names: tuple[str, ...] | None = None
    candidates: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", checked_logits(self.logits))
        if (self.label_names is None) == (self.candidates is None):
            raise ValueError("Predictions have either label_names or candidates; pass one of the two.")
        if not all(isinstance(document_id, str) for document_id in self.ids):
            raise ValueError("Document ids must be strings.")
        per_document = {"ids": self.ids, "labels": self.labels, "candidates": self.candidates}
        for name, values in per_document.items():
            if values is not None and len(values) != len(self.logits):
                raise ValueError(f"There are {len(values)} {name}, but logits of {len(self.logits)} documents.")
        repeated = [document_id for document_id, count in Counter(self.ids).items() if count > 1]
        if repeated:
            raise ValueError(f"Document id {repeated[0]!r} occurs more than once among the predictions.")
        if self.label_names is not None:
            self._check_label_names(self.label_names)
        for row in range(len(self.ids)):
            self._check_document(row)

    @classmethod
    def of_candidates(
        cls,
        ids: Sequence[str],
        labels: Sequence[int | None],
        logits: Sequence[ArrayLike],
        candidates: Sequence[Sequence[str]],
    ) -> PredictionSet:
        """Make a set from one row of logits per question, as long as its candidates."""
        if not len(ids) == len(logits) == len(candidates):
            raise ValueError(
                f"There are {len(ids)} ids, logits of {len(logits)} and candidates of {len(candidates)} questions."
            )
        # At least two columns, as everywhere, even if every question has a single candidate.
        columns = max([2, *(len(names) for names in candidates)])
        padded = np.full((len(logits), columns), -np.inf)
        for row, (values, names) in enumerate(zip(logits, candidates, strict=True)):
            array = np.asarray(values, dtype=np.float64)
            if array.shape != (len(names),):
                raise ValueError(f"Question {ids[row]!r} has {len(names)} candidates, but {array.size} logits.")
            padded[row, : len(names)] = array
        return cls(tuple(ids), tuple(labels), padded, candidates=tuple(map(tuple, candidates)))

    @classmethod
    def of_probabilities(
        cls,
        ids: Sequence[str],
        labels: Sequence[int | None],
        probabilities: ArrayLike,
        label_names: Sequence[str],
    ) -> PredictionSet:
        """Make a set for a classifier that gives only probabilities, such as a baseline."""
        with np.errstate(divide="ignore"):
            logits = np.log(checked_probabilities(probabilities).clip(min=0))
        return cls(tuple(ids), tuple(labels), logits, label_names=tuple(label_names))

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """[documents, classes]; 0 for candidates that a question lacks."""
        return softmax(self.logits)

    @property
    def candidate_counts(self) -> NDArray[np.int64] | None:
        """The number of candidates of every question, None for classification."""
        return None if self.candidates is None else np.array([len(names) for names in self.candidates])

    @property
    def known_labels(self) -> NDArray[np.int64]:
        """The labels as an array; `ValueError` names the first document that has none."""
        for document_id, label in zip(self.ids, self.labels, strict=True):
            if label is None:
                raise ValueError(f"Document {document_id!r} has no label, so its prediction cannot be evaluated.")
        return np.array(self.labels, dtype=np.int64)

    def class_names(self, row: int) -> tuple[str, ...]:
        """The names of the classes of the document in this row."""
        if self.candidates is not None:
            return self.candidates[row]
        assert self.label_names is not None
        return self.label_names

    def with_temperature(self, temperature: Temperature) -> PredictionSet:
        """Return the calibrated predictions: the logits divided by the temperature."""
        return replace(self, logits=temperature.scale(self.logits))

    def evaluate(self, bins: int = DEFAULT_BINS) -> dict[str, float]:
        """Return every measure, see `evaluate_predictions`; all documents must have a label."""
        labels = self.known_labels
        return evaluate_predictions(self.probabilities, labels, candidate_counts=self.candidate_counts, bins=bins)

    def _check_label_names(self, label_names: tuple[str, ...]) -> None:
        if len(label_names) != self.logits.shape[1]:
            raise ValueError(
                f"There are {len(label_names)} label names, but logits of {self.logits.shape[1]} classes."
            )
        if len(set(label_names)) < len(label_names):
            raise ValueError(f"Label names must differ from each other, got {list(label_names)}.")

    def _check_document(self, row: int) -> None:
        names, label, document = self.class_names(row), self.labels[row], f"Document {self.ids[row]!r}"
        columns = self.logits.shape[1]
        if not 1 <= len(names) <= columns or not np.isneginf(self.logits[row, len(names) :]).all():
            raise ValueError(
                f"{document} has {len(names)} candidates, but its logits are {self.logits[row].tolist()}; there must "
                "be one for each candidate, and minus infinity after them."
            )
        if label is None:
            return
        if not 0 <= label < len(names):
            raise ValueError(f"{document} has label {label}, but labels run from 0 to {len(names) - 1}.")
        # On disk the label is a name.
        if names.index(names[label]) != label:
            raise ValueError(f"{document} has the label {names[label]!r}, which an earlier candidate has too.")


# The answer of a question that the model did not read gets a logit lower by this: it counts as wrong, and the
# probabilities hardly change.
_NUDGE = 1e-6


def question_predictions(questions: Sequence[Question], logits: Mapping[str, NDArray[np.float64]]) -> PredictionSet:
    """From logits by question id, at least one per candidate; a question without (too long to read) is wrong."""
    rows = []
    for question in questions:
        count = len(question.candidates)
        row = np.zeros(count)
        if question.id in logits:
            row = np.asarray(logits[question.id], dtype=np.float64)[:count]
        else:
            row[question.answer] = -_NUDGE
        rows.append(row)
    return PredictionSet.of_candidates(
        [question.id for question in questions],
        [question.answer for question in questions],
        rows,
        [question.candidates for question in questions],
    )

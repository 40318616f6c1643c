"""A model's predictions of one split, and the file that stores them: enough to compute every metric again.

The file has one JSON object per line and document:

    {"id": "7", "label": "art", "predicted": "art", "documents": 2, "classes": ["art", "law"], "logits": [2.2, 0.0]}
    {"id": "8", "label": null, "predicted": "law", "logits": [-0.5, 1.25]}

The first line says how many documents follow, itself included, and names the classes of all lines; questions have
`candidates` instead, on every line. The label is null where it is not known, and a logit is null where it is minus
infinity. Numbers are written so that reading gives the very same floats. Where a document can have several labels,
`label` and `predicted` are lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.atomic_files import write_text
from prefixprop.data.documents import ClassificationTask, Label, StoredDocuments, multi_hot
from prefixprop.data.rows import iterate_json_lines
from prefixprop.data.wikihop import Question
from prefixprop.evaluate.calibration import Temperature
from prefixprop.evaluate.metrics import checked_logits, evaluate_predictions, evaluate_several_labels, softmax

# The answer of a question that the model did not read gets a logit lower by this: it counts as wrong, and the
# probabilities hardly change.
_NUDGE = 1e-6


@dataclass(frozen=True, eq=False)
class PredictionSet:
    """Predictions of one split; probabilities are the softmax of the logits. Their shapes are checked on creation.

    `logits` is [documents, classes]; a class of probability 0 has minus infinity. `labels` are indices of classes, or
    None where a document has no label. The classes have either `label_names`, the same for every document, or
    `candidates`, which differ between questions; a question with fewer candidates than there are columns of logits
    has minus infinity in the other columns.

    Where a document can have several labels, `decisions` [documents, labels] says which ones it is given, each label
    has several indices, and probabilities are the sigmoid of the logits.
    """

    ids: tuple[str, ...]
    labels: tuple[Label | None, ...]
    logits: NDArray[np.float64]
    label_names: tuple[str, ...] | None = None
    candidates: tuple[tuple[str, ...], ...] | None = None
    decisions: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", checked_logits(self.logits))
        documents, classes = self.logits.shape
        if (self.label_names is None) == (self.candidates is None):
            raise ValueError("Predictions have either label_names or candidates; pass one of the two.")
        if self.decisions is not None and self.decisions.shape != self.logits.shape:
            raise ValueError(f"Decisions of shape {self.decisions.shape} do not fit logits of {self.logits.shape}.")
        for name, values in {"ids": self.ids, "labels": self.labels, "candidates": self.candidates}.items():
            if values is not None and len(values) != documents:
                raise ValueError(f"There are {len(values)} {name}, but logits of {documents} documents.")
        if self.label_names is not None and len(self.label_names) != classes:
            raise ValueError(f"There are {len(self.label_names)} label names, but logits of {classes} classes.")

    @classmethod
    def of_candidates(
        cls,
        ids: Sequence[str],
        labels: Sequence[int | None],
        logits: Sequence[ArrayLike],
        candidates: Sequence[Sequence[str]],
    ) -> PredictionSet:
        """Make a set from one row of logits per question, as long as its candidates."""
        # At least two columns, as everywhere, even if every question has a single candidate.
        columns = max([2, *(len(names) for names in candidates)])
        padded = np.full((len(logits), columns), -np.inf)
        for row, values, names in zip(padded, logits, candidates, strict=True):
            if np.shape(values) != (len(names),):
                raise ValueError(f"A question has {len(names)} candidates, but logits of shape {np.shape(values)}.")
            row[: len(names)] = values
        return cls(tuple(ids), tuple(labels), padded, candidates=tuple(map(tuple, candidates)))

    @classmethod
    def of_documents(cls, task: ClassificationTask, documents: StoredDocuments, logits: ArrayLike) -> PredictionSet:
        """Make a set for documents of a task; with several labels, a document gets those above 1/2."""
        array = np.asarray(logits, dtype=np.float64)
        ids, labels = tuple(documents.ids), tuple(documents.labels)
        decisions = array >= 0 if task.several_labels else None
        return cls(ids, labels, array, label_names=task.label_names, decisions=decisions)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """[documents, classes]; 0 for candidates that a question lacks."""
        if self.several_labels:
            from scipy.special import expit

            probabilities: NDArray[np.float64] = expit(self.logits)
            return probabilities
        return softmax(self.logits)

    @property
    def several_labels(self) -> bool:
        """Whether a document can have several labels."""
        return self.decisions is not None

    @property
    def known_labels(self) -> NDArray[np.int64]:
        """The labels as an array, [documents], or [documents, labels] of 0 and 1 if there can be several.

        `ValueError` names the first document whose label is not known.
        """
        if None in self.labels:
            document_id = self.ids[self.labels.index(None)]
            raise ValueError(f"Document {document_id!r} has no label, so its prediction cannot be evaluated.")
        if not self.several_labels:
            return np.array(self.labels, dtype=np.int64)
        return multi_hot(self.labels, self.logits.shape[1])

    def class_names(self, row: int) -> tuple[str, ...]:
        """The names of the classes of the document in this row."""
        if self.candidates is not None:
            return self.candidates[row]
        assert self.label_names is not None
        return self.label_names

    def with_temperature(self, temperature: Temperature) -> PredictionSet:
        """Return the calibrated predictions: the logits divided by the temperature; decisions stay."""
        if self.several_labels:
            return replace(self, logits=self.logits / temperature.value)
        return replace(self, logits=temperature.scale(self.logits))

    def evaluate(self) -> dict[str, float]:
        """Return every metric, see `evaluate_predictions`; the labels of all documents must be known."""
        labels = self.known_labels
        if self.decisions is not None:
            return evaluate_several_labels(self.probabilities, labels, self.decisions)
        return evaluate_predictions(self.probabilities, labels, questions=self.candidates is not None)


def question_predictions(questions: Sequence[Question], logits: Mapping[str, NDArray[np.float64]]) -> PredictionSet:
    """From logits by question id, at least one per candidate; a question without logits (too long) is wrong."""
    rows = []
    for question in questions:
        row = np.zeros(len(question.candidates))
        if question.id in logits:
            row[:] = logits[question.id][: len(row)]
        else:
            row[question.answer] = -_NUDGE
        rows.append(row)
    return PredictionSet.of_candidates(
        [question.id for question in questions],
        [question.answer for question in questions],
        rows,
        [question.candidates for question in questions],
    )


def write_predictions(path: str | Path, predictions: PredictionSet) -> None:
    """Write the predictions to a file of JSON lines, wholly or not at all."""
    lines = []
    for row, winner in enumerate(predictions.logits.argmax(axis=1)):
        names, label = predictions.class_names(row), predictions.labels[row]
        predicted: Label = int(winner)
        if predictions.decisions is not None:
            predicted = tuple(np.flatnonzero(predictions.decisions[row]).tolist())
        record: dict[str, Any] = {
            "id": predictions.ids[row],
            "label": None if label is None else _named(label, names),
            "predicted": _named(predicted, names),
        }
        if row == 0:
            record["documents"] = len(predictions.ids)
        if predictions.candidates is not None:
            record["candidates"] = list(names)
        elif row == 0:
            record["classes"] = list(names)
        logits = predictions.logits[row, : len(names)].tolist()
        record["logits"] = [None if logit == -math.inf else logit for logit in logits]
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(path, "".join(lines))


def _named(label: Label, names: Sequence[str]) -> str | list[str]:
    return [names[one] for one in label] if isinstance(label, tuple) else names[label]


def _numbered(label: Any, names: Sequence[str]) -> Label:
    given = label if isinstance(label, list) else [label]
    if unknown := [one for one in given if one not in names]:
        raise ValueError(f"the label {unknown[0]!r} is not one of {[*names]}")
    numbers = tuple(sorted(map(names.index, given)))
    return numbers if isinstance(label, list) else numbers[0]


def read_predictions(path: str | Path) -> PredictionSet:
    """Read what `write_predictions` wrote; anything else raises a `ValueError` beginning with `file:line`."""
    try:
        return _read(Path(path))
    except ValueError as error:
        problem = str(error).removesuffix(".")
        raise ValueError(f"{problem}; restore the file from a copy, or train the run again.") from error


class _Line(NamedTuple):
    label: Label | None
    names: list[str]
    logits: list[float]
    decided: Label | None  # where there can be several labels


def _read(path: Path) -> PredictionSet:
    lines: dict[str, _Line] = {}
    first: dict[str, Any] = {}
    number = 1
    for number, record in iterate_json_lines(path):
        first = first or record
        try:
            line = _parsed(record, first.get("classes"))
            if record["id"] in lines:
                raise ValueError(f"the id {record['id']!r} occurs a second time")
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        lines[record["id"]] = line
    if not lines:
        raise ValueError(f"{path}:1: there are no predictions in the file")
    if (documents := first.get("documents", len(lines))) != len(lines):
        raise ValueError(f"{path}:{number}: there are {len(lines)} documents, but the first line says {documents}")
    ids = tuple(lines)
    labels, names, logits, decided = zip(*lines.values(), strict=True)
    if "candidates" in first:
        return PredictionSet.of_candidates(ids, labels, logits, names)
    decisions = None if None in decided else multi_hot(decided, len(names[0])).astype(bool)
    return PredictionSet(ids, labels, np.array(logits), label_names=tuple(names[0]), decisions=decisions)


def _parsed(record: dict[str, Any], classes: list[str] | None) -> _Line:
    """What a line says, whose classes are `classes` unless it has candidates."""
    names = record.get("candidates", classes)
    missing = [name for name in ("id", "label", "logits") if name not in record]
    if missing or not names:
        raise ValueError(f"the field {[*missing, 'classes'][0]!r} is missing")
    label, logits, predicted = record["label"], record["logits"], record.get("predicted")
    if not isinstance(logits, list) or len(logits) != len(names) or not any(value is not None for value in logits):
        raise ValueError(f"logits must be a list of {len(names)} numbers, null for minus infinity, got {logits!r}")
    for value in logits:
        if value is not None and not (type(value) in (int, float) and math.isfinite(value)):
            raise ValueError(f"logits must be finite numbers, got {value!r}")
    return _Line(
        None if label is None else _numbered(label, names),
        names,
        [-math.inf if value is None else float(value) for value in logits],
        _numbered(predicted, names) if isinstance(predicted, list) else None,
    )


@dataclass(frozen=True)
class LabelRow:
    """One label: how many documents have it (`support`) and get it (`predicted`), and how well that agrees.

    Precision is 0 for a label that is never predicted. The average precision is None for one that no document has.
    """

    label: str
    support: int
    predicted: int
    precision: float
    recall: float
    f1: float
    average_precision: float | None


def label_table(predictions: PredictionSet) -> list[LabelRow]:
    """A row for every label, computed from a run's predictions alone; not for questions, whose candidates differ."""
    from sklearn.metrics import average_precision_score, precision_recall_fscore_support

    assert predictions.label_names is not None
    labels, decisions = predictions.known_labels, predictions.decisions
    if decisions is None:
        each = np.arange(len(predictions.label_names))
        labels, decisions = labels[:, None] == each, predictions.logits.argmax(axis=1)[:, None] == each
    precision, recall, f1, _ = precision_recall_fscore_support(labels, decisions, average=None, zero_division=0)
    return [
        LabelRow(
            name,
            int(labels[:, place].sum()),
            int(decisions[:, place].sum()),
            float(precision[place]),
            float(recall[place]),
            float(f1[place]),
            float(average_precision_score(labels[:, place], scores)) if labels[:, place].any() else None,
        )
        for place, (name, scores) in enumerate(zip(predictions.label_names, predictions.probabilities.T, strict=True))
    ]


def never_predicted(predictions: PredictionSet) -> list[str]:
    """The labels that documents have and no document gets; none for questions."""
    rows = [] if predictions.label_names is None else label_table(predictions)
    return [row.label for row in rows if row.support and not row.predicted]

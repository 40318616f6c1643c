"""How well each label is predicted, as a table; for documents with one label and with several alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixprop.evaluate.predictions import PredictionSet


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
    labels, decisions = _has_and_gets(predictions)
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
    if predictions.label_names is None:
        return []
    labels, decisions = _has_and_gets(predictions)
    missing = np.flatnonzero(labels.any(axis=0) & ~decisions.any(axis=0))
    return [predictions.label_names[place] for place in missing]


def _has_and_gets(predictions: PredictionSet) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which labels each document has, and which it gets: [documents, labels]."""
    labels = predictions.known_labels
    if predictions.decisions is not None:
        return labels.astype(bool), predictions.decisions
    each = np.arange(predictions.logits.shape[1])
    return labels[:, None] == each, predictions.logits.argmax(axis=1)[:, None] == each

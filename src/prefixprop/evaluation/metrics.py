"""Measures of how right the predicted classes are."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score

from prefixprop.evaluation.predictions import checked_predictions


@dataclass(frozen=True)
class ClassificationMetrics:
    """Measures between 0 and 1; `binary_f1` is the F1 of class 1, and None unless there are two classes."""

    accuracy: float
    micro_f1: float
    macro_precision: float
    macro_recall: float
    binary_f1: float | None


def classification_metrics(probabilities: ArrayLike, labels: ArrayLike) -> ClassificationMetrics:
    """Compare the most probable class of every document with its label.

    `probabilities` is [documents, classes]. Macro measures average over the classes that occur among the
    labels or the predictions; without predictions a class's precision is 0, without labels its recall.
    """
    probability_array, label_array = checked_predictions(probabilities, labels)
    predicted = probability_array.argmax(axis=1)
    two_classes = probability_array.shape[1] == 2
    return ClassificationMetrics(
        accuracy=float(accuracy_score(label_array, predicted)),
        micro_f1=float(f1_score(label_array, predicted, average="micro")),
        macro_precision=float(precision_score(label_array, predicted, average="macro", zero_division=0)),
        macro_recall=float(recall_score(label_array, predicted, average="macro", zero_division=0)),
        binary_f1=float(f1_score(label_array, predicted, zero_division=0)) if two_classes else None,
    )

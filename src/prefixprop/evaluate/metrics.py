"""Measures of how right the predicted classes are, and every measure of a set of predictions by its name."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.calibration import DEFAULT_BINS, calibration_metrics
from prefixprop.evaluate.predictions import check_candidates, checked_predictions


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
    counts = confusion_counts(probabilities, labels)
    right, labelled, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    occurs = labelled + predicted > 0
    accuracy = float(right.sum() / counts.sum())
    return ClassificationMetrics(
        accuracy=accuracy,
        micro_f1=accuracy,  # every document has one label
        macro_precision=float((right / predicted.clip(min=1))[occurs].mean()),
        macro_recall=float((right / labelled.clip(min=1))[occurs].mean()),
        binary_f1=float(2 * right[1] / max(labelled[1] + predicted[1], 1)) if len(counts) == 2 else None,
    )


def question_accuracy(probabilities: ArrayLike, labels: ArrayLike, candidate_counts: ArrayLike) -> float:
    """Return the share of questions whose most probable candidate is the answer (WikiHop).

    `probabilities` is [questions, most candidates]; a question has the first `candidate_counts` of them, and 0 for
    the others. `labels` says which candidate is the answer. A candidate's index means nothing outside its question,
    so there are no measures per class.
    """
    probability_array, label_array = checked_predictions(probabilities, labels)
    check_candidates(probability_array, label_array, candidate_counts)
    return float((probability_array.argmax(axis=1) == label_array).mean())


def confusion_counts(probabilities: ArrayLike, labels: ArrayLike) -> NDArray[np.int64]:
    """Count documents by label (rows) and most probable class (columns), [classes, classes]."""
    probability_array, label_array = checked_predictions(probabilities, labels)
    classes = probability_array.shape[1]
    cells = label_array * classes + probability_array.argmax(axis=1)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def evaluate_predictions(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    candidate_counts: ArrayLike | None = None,
    bins: int = DEFAULT_BINS,
) -> dict[str, float]:
    """Return all measures of probabilities [documents, classes] by name, all finite, ready for JSON.

    Always: `accuracy`, `ece`, `adaptive_ece`, `mce`, `brier`, `nll` and `documents`, their number. For classification
    also `micro_f1`, `macro_precision`, `macro_recall`, and `binary_f1` where there are two classes. With
    `candidate_counts` the rows are questions with that many candidates each, see `question_accuracy`.
    """
    probability_array, label_array = checked_predictions(probabilities, labels)
    if candidate_counts is None:
        of_classes = asdict(classification_metrics(probability_array, label_array))
        measures = {name: value for name, value in of_classes.items() if value is not None}
    else:
        measures = {"accuracy": question_accuracy(probability_array, label_array, candidate_counts)}
    measures |= asdict(calibration_metrics(probability_array, label_array, bins))
    return measures | {"documents": len(label_array)}

"""Every measure of one set of predictions, under the names that runs, reports and commands use."""

from __future__ import annotations

from dataclasses import asdict

from numpy.typing import ArrayLike

from prefixprop.evaluation.calibration import DEFAULT_BINS, calibration_metrics
from prefixprop.evaluation.metrics import classification_metrics, question_accuracy
from prefixprop.evaluation.predictions import checked_predictions


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

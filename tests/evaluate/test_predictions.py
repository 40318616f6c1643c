from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prefixprop.evaluate import (
    brier_score,
    calibration_metrics,
    checked_predictions,
    classification_metrics,
    confusion_counts,
    evaluate_predictions,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
    softmax,
)

GOOD = [[0.2, 0.8], [0.9, 0.1]]


@pytest.mark.parametrize(
    "measure",
    [
        brier_score,
        calibration_metrics,
        checked_predictions,
        classification_metrics,
        confusion_counts,
        evaluate_predictions,
        expected_calibration_error,
        negative_log_likelihood,
        reliability,
    ],
)
@pytest.mark.parametrize(
    ("probabilities", "labels", "complaint"),
    [
        ([], [], "no predictions"),
        (np.zeros((0, 2)), [], "no predictions"),
        ([[0.2, 0.8], [1.0]], [0, 1], "numbers in rows of equal length"),
        ([["high", "low"]], [0], "numbers in rows of equal length"),
        ([0.2, 0.8], [0, 1], r"shape \(documents, classes\)"),
        ([[1.0], [1.0]], [0, 0], "at least two classes"),
        ([[0.2, 0.8], [np.nan, 1.0]], [0, 1], "finite, but row 1"),
        ([[np.inf, -np.inf], [0.5, 0.5]], [0, 1], "finite, but row 0"),
        ([[0.2, 0.8], [0.5, 0.498]], [0, 1], "sum to 1, but row 1"),
        ([[2.5, -1.5], [0.5, 0.5]], [0, 1], "between 0 and 1 and sum to 1, but row 0"),
        (GOOD, [0, 1, 1], r"shape \(2,\), but their shape is \(3,\)"),
        (GOOD, [[0], [1]], r"one per document"),
        (GOOD, [0.0, 1.0], "must be integers"),
        (GOOD, [0, 2], "Label 2 in row 1 is outside 0 to 1"),
        (GOOD, [-1, 1], "Label -1 in row 0"),
    ],
)
def test_bad_predictions_are_refused_by_every_measure(
    measure: Callable[[Any, Any], object], probabilities: Any, labels: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        measure(probabilities, labels)


def test_arrays_come_back_in_one_type() -> None:
    half_precision = np.array([[0.3333, 0.6667], [0.1, 0.9]], dtype=np.float16)
    probabilities, labels = checked_predictions(half_precision, np.array([True, False]))
    assert probabilities.dtype == np.float64
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 0]


def test_tensors_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    probabilities, labels = checked_predictions(torch.tensor(GOOD), torch.tensor([1, 0]))
    np.testing.assert_allclose(probabilities, GOOD, atol=1e-6)
    assert labels.tolist() == [1, 0]


def test_softmax_by_hand() -> None:
    np.testing.assert_allclose(softmax([[0.0, np.log(3.0)], [5.0, -np.inf]]), [[0.25, 0.75], [1.0, 0.0]])


@pytest.mark.filterwarnings("error")
def test_softmax_of_huge_logits() -> None:
    huge = [[1e308, -1e308, 1e308], [-1e308, -1e308, -np.inf]]
    np.testing.assert_allclose(softmax(huge), [[0.5, 0.0, 0.5], [0.5, 0.5, 0.0]])


@pytest.mark.parametrize("row", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_logits_without_a_softmax_are_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match=r"minus infinity for an absent class.*row 1 is"):
        softmax([[0.0, 1.0], row])

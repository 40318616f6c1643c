from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixprop.evaluation import expected_calibration_error

Predictions = tuple[np.ndarray, np.ndarray]


def two_classes(confidences: list[float]) -> np.ndarray:
    """Probabilities whose more probable class is 1, with these confidences."""
    return np.array([[1 - confidence, confidence] for confidence in confidences])


@st.composite
def predictions(draw: st.DrawFn) -> Predictions:
    documents, classes = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.01, 0.3, 1.0, 10.0]))
    probabilities = generator.dirichlet(np.full(classes, sharpness), size=documents)
    return probabilities, generator.integers(classes, size=documents)


def test_by_hand_with_ten_bins() -> None:
    # (0.6, 0.7]: confidences 0.62 and 0.68, one right: |0.5 - 0.65| = 0.15, two of five documents.
    # (0.9, 1.0]: confidences 0.92, 0.95 and 0.98, all right: |1 - 0.95| = 0.05, three of five.
    probabilities = two_classes([0.62, 0.68, 0.92, 0.95, 0.98])
    error = expected_calibration_error(probabilities, [1, 0, 1, 1, 1], bins=10)
    assert error == pytest.approx(2 / 5 * 0.15 + 3 / 5 * 0.05)


def test_by_hand_with_three_classes_and_the_default_bins() -> None:
    # Confidence 0.5 is in (7/15, 8/15], wrong; confidence 0.6 is on the edge of (8/15, 9/15], right.
    probabilities = [[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]
    assert expected_calibration_error(probabilities, [1, 2]) == pytest.approx((0.5 + 0.4) / 2)


@pytest.mark.parametrize("edge", [0.6, 0.7, 0.8, 0.9])
def test_bins_are_closed_on_the_right(edge: float) -> None:
    # The edge shares a bin with its lower neighbour, whose gap it partly cancels, but not with the upper.
    below = expected_calibration_error(two_classes([edge - 0.05, edge]), [0, 1], bins=10)
    assert below == pytest.approx(abs(1 - (2 * edge - 0.05)) / 2)
    above = expected_calibration_error(two_classes([edge, edge + 0.05]), [0, 1], bins=10)
    assert above == pytest.approx((edge + 1 - (edge + 0.05)) / 2)


def test_certain_predictions() -> None:
    certain = two_classes([1.0, 1.0])
    assert expected_calibration_error(certain, [1, 1]) == 0
    assert expected_calibration_error(certain, [0, 0]) == 1
    assert expected_calibration_error(certain, [1, 0]) == pytest.approx(0.5)


def test_rounding_cannot_push_the_error_above_one() -> None:
    assert expected_calibration_error([[1.0005, 0.0]], [1]) == 1


@pytest.mark.parametrize("bins", [0, -3])
def test_bins_must_be_positive(bins: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        expected_calibration_error([[0.5, 0.5]], [0], bins=bins)


@given(predictions(), st.integers(1, 30))
def test_lies_between_zero_and_one(given_predictions: Predictions, bins: int) -> None:
    assert 0 <= expected_calibration_error(*given_predictions, bins=bins) <= 1


@given(predictions(), st.integers(1, 30), st.randoms(use_true_random=False))
def test_does_not_depend_on_the_order_of_documents(given_predictions: Predictions, bins: int, random) -> None:
    probabilities, labels = given_predictions
    order = list(range(len(labels)))
    random.shuffle(order)
    shuffled = expected_calibration_error(probabilities[order], labels[order], bins=bins)
    assert shuffled == pytest.approx(expected_calibration_error(probabilities, labels, bins=bins), abs=1e-12)


@given(predictions())
def test_one_bin_is_accuracy_against_mean_confidence(given_predictions: Predictions) -> None:
    probabilities, labels = given_predictions
    accuracy = (probabilities.argmax(axis=1) == labels).mean()
    confidence = probabilities.max(axis=1).mean()
    assert expected_calibration_error(probabilities, labels, bins=1) == pytest.approx(abs(accuracy - confidence))


@given(st.lists(st.integers(11, 20), min_size=1, max_size=8), st.integers(1, 30))
def test_is_zero_when_confidence_is_the_share_of_right_answers(twentieths: list[int], bins: int) -> None:
    # Every group of 20 documents has confidence k/20 and exactly k right answers.
    confidences = [right / 20 for right in twentieths for _ in range(20)]
    labels = [int(position < right) for right in twentieths for position in range(20)]
    assert expected_calibration_error(two_classes(confidences), labels, bins=bins) == pytest.approx(0, abs=1e-12)


@given(predictions())
def test_finer_bins_never_lower_the_error(given_predictions: Predictions) -> None:
    coarse, fine = (expected_calibration_error(*given_predictions, bins=bins) for bins in (5, 15))
    assert coarse <= fine + 1e-12

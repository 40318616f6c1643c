from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from prefixprop.evaluate import (
    adaptive_calibration_error,
    adaptive_reliability,
    brier_score,
    calibration_metrics,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability,
)

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


@pytest.mark.parametrize("bins", [0, -3, 2.5])
@pytest.mark.parametrize(
    "measure",
    [
        expected_calibration_error,
        maximum_calibration_error,
        adaptive_calibration_error,
        reliability,
        adaptive_reliability,
        calibration_metrics,
    ],
)
def test_bins_must_be_a_positive_whole_number(measure: Callable[..., object], bins: float) -> None:
    with pytest.raises(ValueError, match=f"whole number of at least 1, got {bins}"):
        measure([[0.5, 0.5]], [0], bins=bins)


@given(predictions(), st.integers(1, 30))
def test_lies_between_zero_and_one(given_predictions: Predictions, bins: int) -> None:
    assert 0 <= expected_calibration_error(*given_predictions, bins=bins) <= 1


@given(predictions(), st.booleans(), st.integers(1, 30), st.randoms(use_true_random=False))
def test_nothing_depends_on_the_order_of_documents(
    given_predictions: Predictions, rounded: bool, bins: int, random
) -> None:
    probabilities, labels = given_predictions
    if rounded:  # many ties
        probabilities = (
            np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)] * 0.5 + 0.5 / probabilities.shape[1]
        )
    order = list(range(len(labels)))
    random.shuffle(order)
    shuffled = calibration_metrics(probabilities[order], labels[order], bins=bins)
    assert shuffled == calibration_metrics(probabilities, labels, bins=bins)


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


def test_reliability_by_hand() -> None:
    probabilities = two_classes([0.62, 0.68, 0.92, 0.95, 0.98])
    found = reliability(probabilities, [1, 0, 1, 1, 1], bins=10)
    np.testing.assert_allclose(found.edges, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert found.counts.tolist() == [0, 0, 0, 0, 0, 0, 2, 0, 0, 3]
    np.testing.assert_allclose(found.accuracy, [np.nan] * 6 + [0.5, np.nan, np.nan, 1.0])
    np.testing.assert_allclose(found.confidence, [np.nan] * 6 + [0.65, np.nan, np.nan, 0.95])
    np.testing.assert_allclose(found.gaps, [0] * 6 + [0.15, 0, 0, 0.05])
    assert found.maximum_error == pytest.approx(0.15)
    assert maximum_calibration_error(probabilities, [1, 0, 1, 1, 1], bins=10) == pytest.approx(0.15)


def test_equal_mass_bins_by_hand() -> None:
    # Six documents in three bins of two: gaps |0.5 - 0.55|, |0 - 0.75|, |1 - 0.95|.
    probabilities, labels = two_classes([0.95, 0.5, 0.7, 0.6, 0.8, 0.95]), [1, 1, 0, 1, 0, 1]
    probabilities[1] = [0.5, 0.5]  # a tie between classes goes to the first, so this document is wrong
    found = adaptive_reliability(probabilities, labels, bins=3)
    assert found.counts.tolist() == [2, 2, 2]
    np.testing.assert_allclose(found.edges, [0, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(found.accuracy, [0.5, 0, 1])
    np.testing.assert_allclose(found.confidence, [0.55, 0.75, 0.95])
    error = adaptive_calibration_error(probabilities, labels, bins=3)
    assert error == pytest.approx((0.05 + 0.75 + 0.05) / 3)


def test_equal_confidences_stay_in_one_bin() -> None:
    # Sorted: 0.6, then five of 0.9, then 0.95. The five lie across the middle of two bins of 3½: all in the second.
    found = adaptive_reliability(two_classes([0.9, 0.9, 0.6, 0.9, 0.95, 0.9, 0.9]), [1, 0, 1, 1, 1, 0, 0], bins=2)
    assert found.counts.tolist() == [1, 6]
    np.testing.assert_allclose(found.accuracy, [1, 3 / 6])
    # The middle of four documents of 0.6 is in the first half, so all four are, although the last is not.
    found = adaptive_reliability(two_classes([0.8, 0.6, 0.6, 0.7, 0.6, 0.6]), [1] * 6, bins=2)
    assert found.counts.tolist() == [4, 2]
    all_equal = adaptive_reliability(two_classes([0.8] * 9), [1] * 9, bins=4)
    assert all_equal.counts.tolist() == [9]
    assert all_equal.expected_error == pytest.approx(0.2)


@given(st.integers(1, 60), st.integers(1, 20))
def test_equal_mass_bins_are_equal_where_no_confidences_are(documents: int, bins: int) -> None:
    confidences = np.random.default_rng(documents).permutation(np.linspace(0.51, 0.99, documents))
    counts = adaptive_reliability(two_classes(list(confidences)), [1] * documents, bins=bins).counts
    assert len(counts) == min(bins, documents)
    assert counts.max() - counts.min() <= 1
    assert counts.sum() == documents


@given(predictions(), st.integers(1, 30))
def test_every_document_is_in_the_bin_of_its_confidence(given_predictions: Predictions, bins: int) -> None:
    probabilities, labels = given_predictions
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    for found in (reliability(probabilities, labels, bins), adaptive_reliability(probabilities, labels, bins)):
        assert found.edges[0] == 0 and found.edges[-1] == 1
        for index, (low, high) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True)):
            inside = (confidence > low) & (confidence <= high)
            assert found.counts[index] == inside.sum()
            if inside.any():
                assert found.accuracy[index] == pytest.approx(right[inside].mean())
                assert found.confidence[index] == pytest.approx(confidence[inside].mean())


def test_brier_and_nll_by_hand() -> None:
    probabilities = [[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]]
    brier = ((0.3**2 + 0.2**2 + 0.1**2) + (1.0 + 0.5**2 + 0.5**2)) / 2
    assert brier_score(probabilities, [0, 0]) == pytest.approx(brier)
    # The second document's label has probability 0, which counts as 2⁻⁵².
    nll = (-np.log(0.7) + 52 * np.log(2)) / 2
    assert negative_log_likelihood(probabilities, [0, 0]) == pytest.approx(nll)
    assert brier_score([[1, 0]], [0]) == negative_log_likelihood([[1.0005, 0]], [0]) == 0
    assert brier_score([[1, 0]], [1]) == 2


@pytest.mark.parametrize("classes", [2, 3, 20])
def test_agrees_with_scikit_learn_and_torchmetrics(classes: int) -> None:
    generator = np.random.default_rng(classes)
    probabilities = generator.dirichlet(np.full(classes, 0.3), size=500)
    labels = np.array([generator.choice(classes, p=row**0.5 / (row**0.5).sum()) for row in probabilities])
    found = calibration_metrics(probabilities, labels)
    known = list(range(classes))
    assert found.nll == pytest.approx(log_loss(labels, probabilities, labels=known))
    assert found.brier == pytest.approx(brier_score_loss(labels, probabilities, labels=known, scale_by_half=False))
    tensors = torch.tensor(probabilities), torch.tensor(labels)
    for norm, ours in (("l1", found.ece), ("max", found.mce)):
        assert 0.02 < ours < 1
        theirs = multiclass_calibration_error(*tensors, num_classes=classes, n_bins=15, norm=norm)
        assert ours == pytest.approx(theirs.item(), abs=1e-6)


@given(predictions(), st.integers(1, 30))
def test_bounds(given_predictions: Predictions, bins: int) -> None:
    found = calibration_metrics(*given_predictions, bins=bins)
    assert found.ece <= found.mce + 1e-12
    assert 0 <= found.adaptive_ece <= 1
    assert 0 <= found.mce <= 1
    assert 0 <= found.brier <= 2
    assert 0 <= found.nll <= 36.1
    assert all(isinstance(value, float) for value in astuple(found))

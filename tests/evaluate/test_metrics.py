"""Metrics and reliability bins: against torchmetrics, by hand, and as properties."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional import classification as torchmetrics

from prefixprop.evaluate import confusion_counts, evaluate_predictions, reliability, softmax

pytestmark = pytest.mark.filterwarnings("error")
Predictions = tuple[np.ndarray, np.ndarray]
FOR_ALL = {"accuracy", "ece", "adaptive_ece", "mce", "brier", "nll", "documents"}
FOR_CLASSES = FOR_ALL | {"micro_f1", "macro_f1", "macro_precision", "macro_recall"}
GOOD = [[0.2, 0.8], [0.9, 0.1]]


def two_classes(confidences: list[float]) -> np.ndarray:
    """Probabilities whose more probable class is 1, with these confidences."""
    return np.array([[1 - confidence, confidence] for confidence in confidences])


def ece(probabilities: Any, labels: Any, bins: int = 15) -> float:
    return reliability(probabilities, labels, bins).expected_error


@st.composite
def predictions(draw: st.DrawFn) -> Predictions:
    documents, classes = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.01, 0.3, 1.0, 10.0]))
    probabilities = generator.dirichlet(np.full(classes, sharpness), size=documents)
    return probabilities, generator.integers(classes, size=documents)


@pytest.mark.parametrize("classes", [2, 3, 20])
def test_agrees_with_torchmetrics(classes: int) -> None:
    generator = np.random.default_rng(classes)
    probabilities = generator.dirichlet(np.full(classes, 0.3), size=500)
    labels = np.array([generator.choice(classes, p=row**0.5 / (row**0.5).sum()) for row in probabilities])
    found = evaluate_predictions(probabilities, labels)
    assert set(found) == (FOR_CLASSES | {"binary_f1"} if classes == 2 else FOR_CLASSES)
    assert json.loads(json.dumps(found)) == found
    tensors = torch.tensor(probabilities), torch.tensor(labels)
    expected = {
        "accuracy": torchmetrics.multiclass_accuracy(*tensors, classes, average="micro"),
        "micro_f1": torchmetrics.multiclass_f1_score(*tensors, classes, average="micro"),
        "macro_precision": torchmetrics.multiclass_precision(*tensors, classes),
        "macro_recall": torchmetrics.multiclass_recall(*tensors, classes),
        "macro_f1": torchmetrics.multiclass_f1_score(*tensors, classes),
        "ece": torchmetrics.multiclass_calibration_error(*tensors, classes, n_bins=15, norm="l1"),
        "mce": torchmetrics.multiclass_calibration_error(*tensors, classes, n_bins=15, norm="max"),
        "nll": torch.nn.functional.nll_loss(tensors[0].log(), tensors[1]),
        "brier": ((probabilities - np.eye(classes)[labels]) ** 2).sum(axis=1).mean(),
        "documents": 500,
    }
    if classes == 2:
        expected["binary_f1"] = torchmetrics.binary_f1_score(tensors[0].argmax(dim=1), tensors[1])
    expected = {name: float(value) for name, value in expected.items()}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert all(0.02 < found[name] < 1 for name in ("ece", "adaptive_ece", "mce"))
    counts = torchmetrics.multiclass_confusion_matrix(*tensors, classes)
    np.testing.assert_array_equal(confusion_counts(probabilities, labels), counts)


@pytest.mark.parametrize(
    ("predicted", "labels", "classes", "expected"),
    [
        # Class 0: 1 of its 3 documents is found, 1 of its 2 predictions is right; class 1: 2 of 3, and 2 of 4.
        ([0, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1], 2, (3 / 6, (1 / 2 + 2 / 4) / 2, (1 / 3 + 2 / 3) / 2, 4 / 7)),
        ([0, 0, 1, 2], [0, 1, 1, 2], 3, (3 / 4, (1 / 2 + 1 + 1) / 3, (1 + 1 / 2 + 1) / 3, None)),
        ([0, 0, 0, 0], [0, 0, 0, 1], 2, (3 / 4, 3 / 8, 1 / 2, 0)),  # a class never predicted counts as 0
        ([0, 1], [0, 1], 3, (1, 1, 1, None)),  # a class that does not occur is left out
        ([0], [0], 2, (1, 1, 1, 0)),
    ],
)
def test_classes_by_hand(predicted: list[int], labels: list[int], classes: int, expected: tuple[Any, ...]) -> None:
    found = evaluate_predictions(np.eye(classes)[predicted], labels)
    assert found["micro_f1"] == found["accuracy"]
    names = ("accuracy", "macro_precision", "macro_recall", "binary_f1")
    assert tuple(found.get(name) for name in names) == pytest.approx(expected)


def test_questions_by_hand() -> None:
    # Confidences 0.8, wrong, and 0.5, right; absent candidates change nothing.
    probabilities = [[0.8, 0.2, 0.0, 0.0], [0.1, 0.2, 0.2, 0.5]]
    found = evaluate_predictions(probabilities, [1, 3], questions=True)
    assert set(found) == FOR_ALL
    assert found["accuracy"] == 0.5 and found["documents"] == 2
    assert found["ece"] == pytest.approx((0.8 + 0.5) / 2)
    assert found["mce"] == pytest.approx(0.8)
    assert found["brier"] == pytest.approx((0.8**2 + 0.8**2 + 0.1**2 + 0.2**2 + 0.2**2 + 0.5**2) / 2)
    assert found["nll"] == pytest.approx((-np.log(0.2) - np.log(0.5)) / 2)
    impossible = evaluate_predictions([[0.7, 0.3], [1.0, 0.0]], [0, 1])["nll"]  # probability 0 counts as 2⁻⁵²
    assert impossible == pytest.approx((-np.log(0.7) + 52 * np.log(2)) / 2)


def test_rounding_is_no_error() -> None:
    assert evaluate_predictions([[1.0005, -0.0005]], [1])["ece"] == 1
    half_precision = np.array([[0.3333, 0.6667], [0.1, 0.9]], dtype=np.float16)
    assert evaluate_predictions(half_precision, np.array([True, False]))["accuracy"] == 0.5
    tensors = torch.tensor(GOOD), torch.tensor([1, 0])
    assert evaluate_predictions(*tensors) == pytest.approx(evaluate_predictions(GOOD, [1, 0]), abs=1e-6)


@pytest.mark.parametrize("row", [[np.nan, 1.0], [0.5, 0.498], [2.5, -1.5]])
def test_what_is_no_probabilities(row: list[float]) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1 and sum to 1"):
        evaluate_predictions([[0.2, 0.8], row], [0, 1])


@given(predictions(), st.booleans(), st.randoms(use_true_random=False))
def test_nothing_depends_on_the_order_of_documents(given_predictions: Predictions, rounded: bool, random) -> None:
    probabilities, labels = given_predictions
    if rounded:  # many ties
        probabilities = (
            np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)] * 0.5 + 0.5 / probabilities.shape[1]
        )
    order = list(range(len(labels)))
    random.shuffle(order)
    shuffled = evaluate_predictions(probabilities[order], labels[order])
    assert shuffled == evaluate_predictions(probabilities, labels)


# --- reliability ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", [0.6, 0.7, 0.8, 0.9])
def test_bins_are_closed_on_the_right(edge: float) -> None:
    # The edge shares a bin with its lower neighbour, whose gap it partly cancels, but not with the upper.
    below = ece(two_classes([edge - 0.05, edge]), [0, 1], bins=10)
    assert below == pytest.approx(abs(1 - (2 * edge - 0.05)) / 2)
    above = ece(two_classes([edge, edge + 0.05]), [0, 1], bins=10)
    assert above == pytest.approx((edge + 1 - (edge + 0.05)) / 2)


def test_adaptive_bins_by_hand() -> None:
    # Six documents in three bins of two: gaps |0.5 - 0.55|, |0 - 0.75|, |1 - 0.95|.
    probabilities, labels = two_classes([0.95, 0.5, 0.7, 0.6, 0.8, 0.95]), [1, 1, 0, 1, 0, 1]
    probabilities[1] = [0.5, 0.5]  # a tie between classes goes to the first, so this document is wrong
    found = reliability(probabilities, labels, bins=3, adaptive=True)
    assert found.counts.tolist() == [2, 2, 2]
    np.testing.assert_allclose(found.edges, [0, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(found.accuracy, [0.5, 0, 1])
    np.testing.assert_allclose(found.confidence, [0.55, 0.75, 0.95])
    assert found.expected_error == pytest.approx((0.05 + 0.75 + 0.05) / 3)
    usual = reliability(probabilities, labels, adaptive=True).expected_error
    assert evaluate_predictions(probabilities, labels)["adaptive_ece"] == usual


@pytest.mark.parametrize(
    ("confidences", "bins", "counts"),
    [
        # Sorted: 0.6, five of 0.9, then 0.95. The five lie across the middle of two bins of 3½: all in the second.
        ([0.9, 0.9, 0.6, 0.9, 0.95, 0.9, 0.9], 2, [1, 6]),
        # The middle of four documents of 0.6 is in the first half, so all four are, although the last is not.
        ([0.8, 0.6, 0.6, 0.7, 0.6, 0.6], 2, [4, 2]),
        ([0.8] * 9, 4, [9]),
    ],
)
def test_equal_confidences_stay_in_one_adaptive_bin(confidences: list[float], bins: int, counts: list[int]) -> None:
    found = reliability(two_classes(confidences), [1] * len(confidences), bins, adaptive=True)
    assert found.counts.tolist() == counts


@given(st.integers(1, 60), st.integers(1, 20))
def test_adaptive_bins_are_equal_where_no_confidences_are(documents: int, bins: int) -> None:
    confidences = np.random.default_rng(documents).permutation(np.linspace(0.51, 0.99, documents))
    counts = reliability(two_classes(list(confidences)), [1] * documents, bins=bins, adaptive=True).counts
    assert len(counts) == min(bins, documents)
    assert counts.max() - counts.min() <= 1
    assert counts.sum() == documents


@given(predictions(), st.integers(1, 30), st.booleans())
def test_every_document_is_in_the_bin_of_its_confidence(
    given_predictions: Predictions, bins: int, adaptive: bool
) -> None:
    probabilities, labels = given_predictions
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    found = reliability(probabilities, labels, bins, adaptive=adaptive)
    assert found.edges[0] == 0 and found.edges[-1] == 1
    for index, (low, high) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True)):
        inside = (confidence > low) & (confidence <= high)
        assert found.counts[index] == inside.sum()
        if not inside.any():
            assert np.isnan(found.accuracy[index]) and found.gaps[index] == 0
        else:
            assert found.accuracy[index] == pytest.approx(right[inside].mean())
            assert found.confidence[index] == pytest.approx(confidence[inside].mean())


# --- softmax --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_logits_without_a_softmax_are_refused(row: list[float]) -> None:
    np.testing.assert_allclose(softmax([[0.0, np.log(3.0)], [5.0, -np.inf]]), [[0.25, 0.75], [1.0, 0.0]])
    with pytest.raises(ValueError, match=r"minus infinity for an absent class.*row 1 is"):
        softmax([[0.0, 1.0], row])

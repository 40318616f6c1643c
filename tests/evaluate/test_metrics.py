from __future__ import annotations

import numpy as np
import pytest

from prefixprop.evaluate import classification_metrics, confusion_counts, question_accuracy


def one_hot(classes: list[int], num_classes: int) -> np.ndarray:
    return np.eye(num_classes)[classes]


def test_two_classes_by_hand() -> None:
    # Class 0: 1 of its 3 documents is found, 1 of its 2 predictions is right; class 1: 2 of 3, and 2 of 4.
    metrics = classification_metrics(one_hot([0, 1, 1, 1, 1, 0], 2), [0, 0, 0, 1, 1, 1])
    assert metrics.accuracy == pytest.approx(3 / 6)
    assert metrics.micro_f1 == pytest.approx(3 / 6)
    assert metrics.macro_precision == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert metrics.macro_recall == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert metrics.binary_f1 == pytest.approx(2 * (1 / 2) * (2 / 3) / (1 / 2 + 2 / 3))


def test_three_classes_by_hand() -> None:
    metrics = classification_metrics(one_hot([0, 0, 1, 2], 3), [0, 1, 1, 2])
    assert metrics.accuracy == metrics.micro_f1 == pytest.approx(3 / 4)
    assert metrics.macro_precision == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert metrics.macro_recall == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert metrics.binary_f1 is None


def test_perfect_predictions() -> None:
    metrics = classification_metrics([[0.6, 0.4], [0.1, 0.9]], [0, 1])
    assert (metrics.accuracy, metrics.micro_f1, metrics.macro_precision, metrics.macro_recall) == (1, 1, 1, 1)
    assert metrics.binary_f1 == 1


@pytest.mark.filterwarnings("error")
def test_a_class_never_predicted_counts_as_zero_without_a_warning() -> None:
    metrics = classification_metrics(one_hot([0, 0, 0, 0], 2), [0, 0, 0, 1])
    assert metrics.macro_precision == pytest.approx(3 / 8)
    assert metrics.macro_recall == pytest.approx(1 / 2)
    assert metrics.binary_f1 == 0


@pytest.mark.filterwarnings("error")
def test_a_class_that_does_not_occur_is_left_out_of_the_averages() -> None:
    metrics = classification_metrics(one_hot([0, 1], 3), [0, 1])
    assert metrics.macro_precision == metrics.macro_recall == 1


def test_a_single_document_of_class_zero() -> None:
    metrics = classification_metrics([[0.7, 0.3]], [0])
    assert metrics.accuracy == 1
    assert metrics.binary_f1 == 0


def test_confusion_counts_by_hand() -> None:
    counts = confusion_counts(one_hot([0, 0, 1, 0, 2], 4), [0, 1, 1, 2, 2])
    assert counts.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_questions_with_different_numbers_of_candidates() -> None:
    probabilities = [[0.2, 0.8, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0], [0.4, 0.3, 0.3, 0.0]]
    assert question_accuracy(probabilities, [1, 3, 0, 2], [2, 4, 1, 3]) == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("labels", "counts", "complaint"),
    [
        ([0, 2], [2, 3], "none"),
        ([2, 0], [2, 3], "Label 2 of question 0 is outside its 2 candidates"),
        ([0, 0], [2, 2], "Question 1 has 2 candidates, but gives a probability to more"),
        ([0, 0], [2, 4], "Question 1 has 4 candidates, but there must be 1 to 3"),
        ([0, 0], [0, 3], "Question 0 has 0 candidates"),
        ([0, 0], [2], r"one integer per question, shape \(2,\), but their shape is \(1,\)"),
        ([0, 0], [2.0, 3.0], "type float64"),
    ],
)
def test_questions_must_stay_within_their_candidates(labels: list, counts: list, complaint: str) -> None:
    probabilities = [[0.5, 0.5, 0.0], [0.2, 0.2, 0.6]]
    if complaint == "none":
        assert question_accuracy(probabilities, labels, counts) == 1
        return
    with pytest.raises(ValueError, match=complaint):
        question_accuracy(probabilities, labels, counts)

from __future__ import annotations

import numpy as np
import pytest

from prefixprop.evaluation import classification_metrics


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

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score

from prefixprop.evaluate import calibration_metrics, evaluate_predictions

FOR_ALL = {"accuracy", "ece", "adaptive_ece", "mce", "brier", "nll", "documents"}
FOR_CLASSES = FOR_ALL | {"micro_f1", "macro_precision", "macro_recall"}


@pytest.mark.parametrize("classes", [2, 5])
def test_all_measures_of_a_classifier(classes: int) -> None:
    generator = np.random.default_rng(classes)
    probabilities = generator.dirichlet(np.ones(classes), size=60)
    labels = generator.integers(classes, size=60)
    measures = evaluate_predictions(probabilities, labels, bins=7)
    assert set(measures) == (FOR_CLASSES | {"binary_f1"} if classes == 2 else FOR_CLASSES)
    assert json.loads(json.dumps(measures)) == measures

    predicted, calibration = probabilities.argmax(axis=1), calibration_metrics(probabilities, labels, bins=7)
    assert measures["documents"] == 60
    assert measures["accuracy"] == measures["micro_f1"] == pytest.approx((predicted == labels).mean())
    assert measures["macro_precision"] == pytest.approx(precision_score(labels, predicted, average="macro"))
    assert measures["macro_recall"] == pytest.approx(recall_score(labels, predicted, average="macro"))
    if classes == 2:
        assert measures["binary_f1"] == pytest.approx(f1_score(labels, predicted))
    for name in ("ece", "adaptive_ece", "mce", "brier", "nll"):
        assert measures[name] == getattr(calibration, name)


def test_all_measures_of_questions() -> None:
    # Confidences 0.8, wrong, and 0.5, right; absent candidates change nothing.
    probabilities = [[0.8, 0.2, 0.0, 0.0], [0.1, 0.2, 0.2, 0.5]]
    measures = evaluate_predictions(probabilities, [1, 3], candidate_counts=[2, 4])
    assert set(measures) == FOR_ALL
    assert measures["accuracy"] == 0.5
    assert measures["ece"] == pytest.approx((0.8 + 0.5) / 2)
    assert measures["mce"] == pytest.approx(0.8)
    assert measures["brier"] == pytest.approx((0.8**2 + 0.8**2 + 0.1**2 + 0.2**2 + 0.2**2 + 0.5**2) / 2)
    assert measures["nll"] == pytest.approx((-np.log(0.2) - np.log(0.5)) / 2)
    assert measures["documents"] == 2


def test_questions_are_checked() -> None:
    with pytest.raises(ValueError, match="Label 3 of question 1 is outside its 3 candidates"):
        evaluate_predictions([[0.5, 0.5, 0, 0], [1, 0, 0, 0]], [0, 3], candidate_counts=[2, 3])

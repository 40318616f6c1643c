from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prefixprop.evaluate import PredictionSet, Temperature, evaluate_predictions, fit_temperature

TWO = {"ids": ("a", "b"), "labels": (0, 1), "logits": [[1.0, 0.0], [0.5, 0.25]], "label_names": ("no", "yes")}
QUESTIONS = {
    "ids": ("q1", "q2", "q3"),
    "labels": (1, 0, 0),
    "logits": [[0.0, 2.0], [1.0, 0.5, 0.25], [4.0]],
    "candidates": (("Oslo", "Rome"), ("red", "green", "blue"), ("one",)),
}


def test_classification() -> None:
    predictions = PredictionSet(**TWO)
    np.testing.assert_allclose(predictions.probabilities[0], [np.e / (np.e + 1), 1 / (np.e + 1)])
    assert predictions.class_names(1) == ("no", "yes")
    assert predictions.candidate_counts is None
    assert predictions.evaluate(bins=5) == evaluate_predictions(predictions.probabilities, [0, 1], bins=5)
    assert "binary_f1" in predictions.evaluate()


def test_questions_of_different_lengths() -> None:
    predictions = PredictionSet.of_candidates(**QUESTIONS)
    assert predictions.logits.shape == (3, 3)
    np.testing.assert_allclose(predictions.probabilities[0], [1 / (1 + np.e**2), np.e**2 / (1 + np.e**2), 0])
    assert predictions.probabilities[2].tolist() == [1, 0, 0]
    assert predictions.candidate_counts.tolist() == [2, 3, 1]
    assert predictions.class_names(0) == ("Oslo", "Rome")
    measures = predictions.evaluate()
    assert measures["accuracy"] == 1 and "macro_recall" not in measures


def test_a_single_candidate_everywhere() -> None:
    predictions = PredictionSet.of_candidates(["q"], [0], [[3.0]], [["only"]])
    assert predictions.probabilities.tolist() == [[1, 0]]
    assert predictions.evaluate()["nll"] == 0


@pytest.mark.parametrize("predictions", [PredictionSet(**TWO), PredictionSet.of_candidates(**QUESTIONS)])
def test_temperature(predictions: PredictionSet) -> None:
    fitted = fit_temperature(predictions.logits, predictions.known_labels)
    calibrated = predictions.with_temperature(fitted)
    np.testing.assert_allclose(calibrated.probabilities, fitted.apply(predictions.logits))
    assert calibrated.evaluate()["nll"] == pytest.approx(fitted.nll_after)
    assert calibrated.ids == predictions.ids and calibrated.class_names(0) == predictions.class_names(0)
    unchanged = predictions.with_temperature(Temperature(1.0, 0.5, 0.5))
    np.testing.assert_allclose(unchanged.probabilities, predictions.probabilities)


def test_probabilities_alone() -> None:
    probabilities = [[0.25, 0.75, 0.0], [0.5, 0.125, 0.375]]
    predictions = PredictionSet.of_probabilities(["a", "b"], [1, 0], probabilities, ["x", "y", "z"])
    np.testing.assert_allclose(predictions.probabilities, probabilities)
    assert np.isneginf(predictions.logits[0, 2])


def test_measures_need_labels() -> None:
    predictions = PredictionSet(**TWO | {"labels": (0, None)})
    with pytest.raises(ValueError, match="Document 'b' has no label"):
        predictions.evaluate()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ids": ("a",)}, "1 ids, but logits of 2 documents"),
        ({"labels": (0, 1, 1)}, "3 labels, but logits of 2 documents"),
        ({"ids": ("a", "a")}, "id 'a' occurs more than once"),
        ({"ids": (1, 2)}, "ids must be strings"),
        ({"labels": (0, 2)}, "Document 'b' has label 2, but labels run from 0 to 1"),
        ({"label_names": ("no", "yes", "maybe")}, "3 label names, but logits of 2 classes"),
        ({"label_names": ("no", "no")}, "must differ from each other"),
        ({"label_names": None}, "either label_names or candidates"),
        ({"candidates": (("x", "y"), ("x", "y"))}, "either label_names or candidates"),
        ({"logits": [[1.0, 0.0], [np.nan, 0.0]]}, "Logits must be finite"),
        ({"label_names": None, "candidates": (("x", "y"), ("x",))}, "Document 'b' has 1 candidates, but its logits"),
        ({"label_names": None, "candidates": (("x", "y"), ())}, "Document 'b' has 0 candidates"),
        ({"label_names": None, "candidates": (("x", "y"), ("x", "y", "z"))}, "Document 'b' has 3 candidates"),
        ({"label_names": None, "candidates": (("x", "y"), ("x", "x"))}, "label 'x', which an earlier candidate"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PredictionSet(**TWO | changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"logits": [[0.0, 2.0], [1.0], [4.0]]}, "Question 'q2' has 3 candidates, but 1 logits"),
        ({"ids": ("q1",)}, "1 ids, logits of 3 and candidates of 3 questions"),
    ],
)
def test_questions_that_do_not_fit_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PredictionSet.of_candidates(**QUESTIONS | changes)

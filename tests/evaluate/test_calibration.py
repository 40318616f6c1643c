"""Temperature scaling: against scipy's minimiser, by hand, and as properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixprop.evaluate import Temperature, fit_temperature, reliability, softmax
from prefixprop.evaluate.calibration import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE

pytestmark = pytest.mark.filterwarnings("error")
Predictions = tuple[np.ndarray, np.ndarray]


@st.composite
def logits_and_labels(draw: st.DrawFn) -> Predictions:
    documents, classes = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = generator.normal(size=(documents, classes)) * draw(st.sampled_from([1e-3, 0.1, 1.0, 30.0, 1e6]))
    labels = generator.integers(classes, size=documents)
    if draw(st.booleans()):
        labels = np.where(generator.random(documents) < 0.8, logits.argmax(axis=1), labels)
    if draw(st.booleans()):  # ragged: candidates that a question lacks, but never its answer
        absent = generator.random(logits.shape) < 0.3
        absent[np.arange(documents), labels] = False
        logits[absent] = -np.inf
    return logits, labels


def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """The mean negative log-likelihood of the labels."""
    shifted = (logits - logits.max(axis=1, keepdims=True)) / temperature
    return float((np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]).mean())


def over_confident(temperature: float, documents: int = 4000) -> Predictions:
    """Logits `temperature` times those that the labels are drawn from."""
    generator = np.random.default_rng(3)
    true_logits = generator.normal(size=(documents, 4)) * 2
    labels = np.array([generator.choice(4, p=row) for row in softmax(true_logits)])
    return true_logits * temperature, labels


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 12.0])
def test_finds_the_temperature_the_labels_were_drawn_with(temperature: float) -> None:
    logits, labels = over_confident(temperature)
    found = fit_temperature(logits, labels)
    assert found.value == pytest.approx(temperature, rel=0.05)
    before = reliability(softmax(logits), labels).expected_error
    after = reliability(found.apply(logits), labels).expected_error
    assert after < 0.03 and (temperature == 1.0 or after < before / 2)


def test_fit_by_hand() -> None:
    # Three of four documents are right, each by a margin of 2: the best margin is log 3, so T = 2 / log 3.
    found = fit_temperature([[2.0, 0.0]] * 4, [0, 0, 0, 1])
    assert found.value == pytest.approx(2 / np.log(3))
    np.testing.assert_allclose(found.apply([[2.0, 0.0]]), [[0.75, 0.25]])


@pytest.mark.parametrize(
    ("logits", "labels", "value"),
    [
        ([[1.0, 0.0], [0.0, 2.0]], [0, 1], LOWEST_TEMPERATURE),  # separable
        ([[1.0, 0.0], [3.0, 0.0]], [0, 0], LOWEST_TEMPERATURE),  # one class only
        ([[0.3, 0.0, -np.inf]], [0], LOWEST_TEMPERATURE),  # one right document
        ([[1.0, 0.0], [0.0, 2.0]], [1, 0], HIGHEST_TEMPERATURE),  # all wrong
        ([[5.0, 0.0]], [1], HIGHEST_TEMPERATURE),  # one wrong document
        ([[1e6, 0.0], [0.0, 1e6]], [0, 0], HIGHEST_TEMPERATURE),  # huge, half wrong
        ([[1e308, -1e308], [0.0, 1.0]], [1, 0], HIGHEST_TEMPERATURE),  # at the limit of floats
        ([[0.0, 0.0], [7.0, 7.0]], [0, 1], 1.0),  # equal logits
        ([[1e6, 0.0], [0.0, 1e6]], [0, 1], 1.0),  # certain and right
        ([[100.0, 0.0], [0.0, 100.0]], [0, 1], 1.0),  # right, and certain but for rounding
        ([[3.0, -np.inf]], [0], 1.0),  # a single candidate
    ],
)
def test_degenerate_dev_sets(logits: list, labels: list, value: float) -> None:
    found = fit_temperature(logits, labels)
    assert found.value == value
    assert np.isfinite(found.apply(logits)).all()


@given(logits_and_labels())
def test_likelihood_never_gets_worse_and_predictions_stay(given_predictions: Predictions) -> None:
    logits, labels = given_predictions
    found = fit_temperature(logits, labels)
    assert LOWEST_TEMPERATURE <= found.value <= HIGHEST_TEMPERATURE
    assert nll(logits, labels, found.value) <= nll(logits, labels, 1.0)
    for value in np.geomspace(LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE, 30):  # no other is better
        assert nll(logits, labels, found.value) <= nll(logits, labels, value) * (1 + 1e-9) + 1e-12
    calibrated = found.apply(logits)
    np.testing.assert_allclose(calibrated.sum(axis=1), 1)
    assert (calibrated.argmax(axis=1) == logits.argmax(axis=1)).all()
    assert (calibrated[np.isneginf(logits)] == 0).all()


@given(logits_and_labels())
def test_absent_classes_change_nothing(given_predictions: Predictions) -> None:
    logits, labels = given_predictions
    widened = np.hstack([logits, np.full((len(logits), 2), -np.inf)])
    assert fit_temperature(widened, labels).value == pytest.approx(fit_temperature(logits, labels).value)


def test_apply_by_hand() -> None:
    halved = Temperature(2.0)
    np.testing.assert_allclose(halved.apply([[np.log(9.0), 0.0]]), [[0.75, 0.25]])
    np.testing.assert_allclose(halved.scale([[5.0, 1.0, -np.inf]]), [[0.0, -2.0, -np.inf]])


@pytest.mark.parametrize(
    ("logits", "labels", "complaint"),
    [
        ([], [], "at least one document"),
        ([[0.0, np.nan]], [0], "Logits must be finite.*row 0"),
        ([[0.0, np.inf]], [0], "Logits must be finite.*row 0"),
        ([[0.0, 1.0], [-np.inf, 1.0]], [0, 0], "label 0 in row 1 has the logit minus infinity"),
        ([[0.0, 1.0]], [2], "Label 2 in row 0 is outside 0 to 1"),
        ([[0.0, 1.0]], [0, 1], "one integer per document"),
    ],
)
def test_bad_input(logits: list, labels: list, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fit_temperature(logits, labels)

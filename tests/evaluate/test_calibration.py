"""Temperature scaling by hand and as properties; which answers can be accepted, and whether that promise holds."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from prefixprop.evaluate import (
    TEMPERATURE_SPREAD,
    Temperature,
    Trust,
    fit_temperature,
    fit_trust,
)
from prefixprop.evaluate.calibration import (
    ESTIMATE,
    GUARANTEE,
    HIGHEST_TEMPERATURE,
    LOWEST_TEMPERATURE,
    RISK,
    documents_for_guarantee,
    fewest_documents,
)

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


def test_fit_by_hand() -> None:
    # Three of four documents are right, each by a margin of 2: the best margin is log 3, so T = 2 / log 3.
    found = fit_temperature([[2.0, 0.0]] * 4, [0, 0, 0, 1])
    assert found.value == pytest.approx(2 / np.log(3))
    np.testing.assert_allclose(found.apply([[2.0, 0.0]]), [[0.75, 0.25]])
    np.testing.assert_allclose(Temperature(2.0).scale([[5.0, 1.0, -np.inf]]), [[0.0, -2.0, -np.inf]])


@pytest.mark.parametrize(
    ("logits", "labels", "value"),
    [
        ([[1.0, 0.0], [0.0, 2.0]], [0, 1], LOWEST_TEMPERATURE),  # separable
        ([[0.3, 0.0, -np.inf]], [0], LOWEST_TEMPERATURE),  # one right document
        ([[1.0, 0.0], [0.0, 2.0]], [1, 0], HIGHEST_TEMPERATURE),  # all wrong
        ([[1e6, 0.0], [0.0, 1e6]], [0, 0], HIGHEST_TEMPERATURE),  # huge, half wrong
        ([[3e38, -3e38], [0.0, 1.0]], [1, 0], HIGHEST_TEMPERATURE),  # at the limit of single precision
        ([[0.0, 0.0], [7.0, 7.0]], [0, 1], 1.0),  # equal logits
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
    widened = np.hstack([logits, np.full((len(logits), 2), -np.inf)])  # absent classes change nothing
    assert fit_temperature(widened, labels).value == pytest.approx(found.value)


@given(logits_and_labels(), st.floats(0.1, 2))
def test_a_spread_draws_the_temperature_towards_one(given_predictions: Predictions, spread: float) -> None:
    logits, labels = given_predictions
    drawn, free = (fit_temperature(logits, labels, width).value for width in (spread, math.inf))
    assert min(free, 1) <= drawn <= max(free, 1)

    def loss(value: float) -> float:
        return nll(logits, labels, value) + math.log(value) ** 2 / (2 * spread**2 * len(labels))

    # The prior is convex in 1/T down to T = 1/e, so there is one best T above it.
    for value in np.geomspace(max(0.4, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE, 30):
        assert drawn < 0.4 or loss(drawn) <= loss(value) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("scale", [0.4, 1.0, 2.5])
def test_with_few_documents_a_spread_is_better_for_others(scale: float) -> None:
    """300 dev sets of 15 documents, of a model that is underconfident, calibrated or overconfident."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, size=(300, 15))
    logits = scale * 1.5 * (generator.normal(size=(300, 15, 4)) + 1.5 * np.eye(4)[labels])
    others = logits.reshape(-1, 4), labels.ravel()
    with_spread, without = (
        np.mean([nll(*others, fit_temperature(*dev, spread).value) for dev in zip(logits, labels, strict=True)])
        for spread in (TEMPERATURE_SPREAD, math.inf)
    )
    assert with_spread < without


@pytest.mark.parametrize(
    ("logits", "complaint"),
    [
        ([[0.0, 1.0], [0.0, np.nan]], "Logits must be finite.*row 1"),
        ([[0.0, 1.0], [-np.inf, 1.0]], "label 0 in row 1 has the logit minus infinity"),
    ],
)
def test_bad_logits(logits: list, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fit_temperature(logits, [0, 0])


# --- which answers can be accepted ----------------------------------------------------------------------------------


def answers(confidence: Any, right: Any) -> Predictions:
    """Probabilities of three classes, the first of which is predicted, and labels."""
    confidence = np.asarray(confidence, dtype=float)
    rest = (1 - confidence) / 2
    return np.stack([confidence, rest, rest], axis=1), np.where(right, 0, 1)


@pytest.mark.parametrize(("target", "fewest"), [(0.5, 4), (0.9, 22), (0.95, 45), (0.99, 230)])
def test_fewest_documents(target: float, fewest: int) -> None:
    assert fewest_documents(target) == fewest and documents_for_guarantee(target) == 12 * fewest
    for count in (fewest - 1, fewest):
        trust = fit_trust(target, answers(np.linspace(0.6, 0.9, count), np.ones(count, dtype=bool)))
        passed = binom.cdf(0, count, 1 - target) <= RISK
        assert passed == (count == fewest) == (trust.threshold is not None)
        assert (trust.accepted, trust.accuracy) == ((count, 1.0) if passed else (0, None))


@pytest.mark.parametrize("is_other", [False, True])
def test_the_last_threshold_before_the_first_that_fails(is_other: bool) -> None:
    """100 right answers, then only mistakes, then so many right ones that a late threshold would pass again."""
    confidence = np.linspace(0.99, 0.5, 1000)
    right = np.ones(1000, dtype=bool)
    right[100:130] = False
    tested = answers(confidence, right)
    trust = fit_trust(0.9, tested, answers(confidence, np.arange(1000) < 100) if is_other else None)
    whole = right.mean()
    assert whole > 0.95  # the threshold that accepts everything would pass, too
    if is_other:  # its documents say that the sequence begins at the top
        assert trust.accepted < 130 and trust.accuracy is not None and trust.accuracy > 0.9
        assert trust.kind == GUARANTEE
    else:  # the sequence begins where the evidence is strongest
        assert trust.accepted == 1000 and trust.accuracy == whole and trust.kind == ESTIMATE
    assert trust.threshold is not None
    assert trust.decide(trust.threshold) == "accept" and trust.decide(trust.threshold - 1e-9) == "review"


def test_no_answer_is_accepted() -> None:
    generator = np.random.default_rng(0)
    trust = fit_trust(0.95, answers(generator.uniform(0.4, 1, 500), generator.random(500) < 0.5))
    assert asdict(trust) == {
        "target": 0.95, "threshold": None, "kind": ESTIMATE, "documents": 500, "accepted": 0, "accuracy": None,
    }  # fmt: skip
    assert trust.decide(1.0) == "review"
    assert "No answer is accepted: 500 documents do not show" in str(trust)


@pytest.mark.parametrize("has_others", [True, False])
def test_the_promise_holds(has_others: bool) -> None:
    """Of 300 draws, a tenth may fail; three standard errors more is chance."""
    generator = np.random.default_rng(1)

    def draw(count: int) -> Predictions:
        confidence = 0.4 + 0.6 * generator.beta(3, 0.8, count)
        return answers(confidence, generator.random(count) < confidence**1.3)  # too sure of itself

    many = draw(20_000)
    held, accepted = [], []
    for _ in range(300):
        trust = fit_trust(0.9, draw(400), draw(400) if has_others else None)
        of_many = trust.on(*many)
        held.append(of_many["accuracy"] is None or of_many["accuracy"] >= 0.9)
        accepted.append(of_many["accepted"] / 20_000)
    assert np.mean(held) >= 1 - RISK - 3 * np.sqrt(RISK * (1 - RISK) / 300)
    assert np.mean(accepted) > 0.3


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (GUARANTEE, "are right, with a probability of 90% (a guarantee from 400 documents that were set aside)."),
        (ESTIMATE, "should be right (an estimate on 400 documents)."),
    ],
)
def test_in_words(kind: str, promise: str) -> None:
    found = "Accept answers with a confidence of 0.812 or more, 25% of documents: at least 95.0% of these "
    assert str(Trust(0.95, 0.8123, kind, 400, 100, 0.98)) == found + promise

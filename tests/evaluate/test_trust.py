"""Which answers can be accepted: the binomial test in its sequence, and whether what it promises holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from prefixprop.evaluate import PredictionSet, Trust, fit_trust, measure_trust
from prefixprop.evaluate.trust import ESTIMATE, GUARANTEE, RISK, documents_for_guarantee, fewest_documents

Answers = tuple[NDArray[np.float64], NDArray[np.int64]]


def answers(confidence: Any, right: Any) -> Answers:
    """Probabilities of three classes, the first of which is predicted, and labels."""
    confidence = np.asarray(confidence, dtype=float)
    rest = (1 - confidence) / 2
    return np.stack([confidence, rest, rest], axis=1), np.where(right, 0, 1)


@pytest.mark.parametrize(("target", "fewest"), [(0.5, 4), (0.9, 22), (0.95, 45), (0.99, 230)])
def test_fewest_documents(target: float, fewest: int) -> None:
    assert fewest_documents(target) == fewest
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

    def draw(count: int) -> Answers:
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


def test_the_entry_of_the_metrics() -> None:
    generator = np.random.default_rng(2)

    def predictions(count: int) -> PredictionSet:
        confidence = generator.uniform(0.5, 1, count)
        probabilities, labels = answers(confidence, generator.random(count) < confidence)
        ids = tuple(map(str, range(count)))
        return PredictionSet(ids, tuple(labels.tolist()), np.log(probabilities), label_names=("a", "b", "c"))

    splits = {"dev": predictions(300), "test": predictions(100)}
    assert measure_trust(None, splits) == {}
    found = measure_trust(0.8, splits)["trust"]
    assert (found["kind"], found["documents"], found["test"]["documents"]) == (ESTIMATE, 300, 100)
    found = measure_trust(0.8, splits | {"calibration": predictions(200)})["trust"]
    assert (found["kind"], found["documents"]) == (GUARANTEE, 200)
    assert documents_for_guarantee(0.95) == 540


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (GUARANTEE, "are right, with a probability of 90% (a guarantee by 400 documents that were set aside)."),
        (ESTIMATE, "should be right (an estimate on 400 documents)."),
    ],
)
def test_in_words(kind: str, promise: str) -> None:
    found = "Accept answers with a confidence of 0.812 or more, 25% of documents: at least 95.0% of these "
    assert str(Trust(0.95, 0.8123, kind, 400, 100, 0.98)) == found + promise

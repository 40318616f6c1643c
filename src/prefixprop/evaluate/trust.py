"""Which answers can be accepted: the confidence above which enough of them are right, by risk control.

An answer is accepted if its confidence is at least a threshold. For each candidate threshold, from high to low, the
hypothesis "fewer than `target` of the accepted answers are right" is tested by the binomial tail

    p = P(at most as many mistakes as were made | accepted answers, each wrong with probability 1 - target)

and the last threshold before the first p above `RISK` is kept. This is fixed-sequence testing (Angelopoulos et al.,
2021, "Learn then Test"): with a probability of 1 - `RISK` over the documents that were tested on, at least `target`
of the accepted answers to documents like these are right. No correction for the number of tests is needed, because
the sequence is fixed before: other documents choose where it begins, and its steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.metrics import checked_predictions
from prefixprop.evaluate.predictions import PredictionSet

RISK = 0.1  # that the promise does not hold
GUARANTEE, ESTIMATE = "guarantee", "estimate"
ACCEPT, REVIEW = "accept", "review"
_STEPS = 50  # thresholds of a sequence, at most


@dataclass(frozen=True)
class Trust:
    """Which answers to accept; its fields are ready for JSON.

    Attributes:
        target: The share of accepted answers that shall be right.
        threshold: The lowest confidence that is accepted; None if no threshold passed the test.
        kind: `GUARANTEE` if nothing else was chosen on the documents of the test, otherwise `ESTIMATE`.
        documents: How many documents the test was made on.
        accepted: How many of them are accepted.
        accuracy: The share of these that is right; None if there are none.
    """

    target: float
    threshold: float | None
    kind: str
    documents: int
    accepted: int = 0
    accuracy: float | None = None

    def decide(self, confidence: float) -> str:
        return ACCEPT if self.threshold is not None and confidence >= self.threshold else REVIEW

    def on(self, probabilities: ArrayLike, labels: ArrayLike) -> dict[str, Any]:
        """How many answers to other documents are accepted, and which share of these is right."""
        return _accepted(*_answers(probabilities, labels), self.threshold)

    def __str__(self) -> str:
        if self.threshold is None:
            return (
                f"No answer is accepted: {self.documents:,} documents do not show that {self.target:.1%} of any are "
                f"right, which takes {fewest_documents(self.target):,} answers without a mistake at the least."
            )
        promise = f"{self.target:.1%} of these should be right (an estimate on {self.documents:,} documents)"
        if self.kind == GUARANTEE:
            promise = (
                f"{self.target:.1%} of these are right, with a probability of {1 - RISK:.0%} (a guarantee by "
                f"{self.documents:,} documents that were set aside)"
            )
        return (
            f"Accept answers with a confidence of {self.threshold:.3f} or more, {self.accepted / self.documents:.0%} "
            f"of documents: at least {promise}."
        )


def fewest_documents(target: float) -> int:
    """How many answers without a mistake it takes to pass the test."""
    return math.ceil(math.log(RISK) / math.log(target))


def documents_for_guarantee(target: float) -> int:
    """How large a dev set must be for half of it to be set aside for the test; smaller halves hardly ever pass."""
    return 12 * fewest_documents(target)


def measure_trust(target: float | None, predictions: Mapping[str, PredictionSet]) -> dict[str, Any]:
    """The entry of a run's metrics, from its calibrated predictions by split; empty without a target."""
    if target is None:
        return {}
    splits = {name: (split.probabilities, split.known_labels) for name, split in predictions.items()}
    has_own = "calibration" in splits  # documents that were set aside
    trust = fit_trust(target, splits["calibration" if has_own else "dev"], splits["dev"] if has_own else None)
    of_test = {"test": trust.on(*splits["test"])} if "test" in splits else {}
    return {"trust": asdict(trust) | of_test}


def fit_trust(
    target: float,
    tested: tuple[ArrayLike, ArrayLike],
    others: tuple[ArrayLike, ArrayLike] | None = None,
) -> Trust:
    """Find the threshold on the probabilities [documents, classes] and labels of `tested`.

    `others` are the answers to other documents, which fix the sequence of thresholds; then the result is a guarantee
    if nothing else was chosen on `tested` either. Without others `tested` fixes it itself, for an estimate.
    """
    confidence, right = _answers(*tested)
    thresholds = _sequence(target, *_answers(*(others or tested)), len(right))
    passed = _p_values(target, *_counts(confidence, right, thresholds)) <= RISK
    last = int(np.argmin([*passed, False])) - 1  # before the first that did not pass
    found = float(thresholds[last]) if last >= 0 else None
    kind = ESTIMATE if others is None else GUARANTEE
    return Trust(target, found, kind, **_accepted(confidence, right, found))


def _sequence(
    target: float, confidence: NDArray[np.float64], right: NDArray[np.bool_], tested: int
) -> NDArray[np.float64]:
    """Thresholds from high to low, from the one that is most likely to pass a test on so many documents."""
    thresholds = np.unique(np.quantile(confidence, np.arange(_STEPS) / _STEPS, method="lower"))[::-1]
    expected = [np.rint(counts * tested / len(right)) for counts in _counts(confidence, right, thresholds)]
    return thresholds[int(np.argmin(_p_values(target, *expected))) :]


def _counts(
    confidence: NDArray[np.float64], right: NDArray[np.bool_], thresholds: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many answers each threshold accepts, and how many of these are right."""
    accepted = confidence >= thresholds[:, None]
    return accepted.sum(axis=1), (accepted & right).sum(axis=1)


def _p_values(target: float, accepted: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
    from scipy.stats import binom

    values: NDArray[np.float64] = binom.cdf(accepted - right, accepted, 1 - target)
    return values


def _answers(probabilities: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The confidence of every answer, and whether it is right."""
    array, label_array = checked_predictions(probabilities, labels)
    return array.max(axis=1), array.argmax(axis=1) == label_array


def _accepted(confidence: NDArray[np.float64], right: NDArray[np.bool_], threshold: float | None) -> dict[str, Any]:
    accepted = confidence >= (math.inf if threshold is None else threshold)
    accuracy = float(right[accepted].mean()) if accepted.any() else None
    return {"documents": len(right), "accepted": int(accepted.sum()), "accuracy": accuracy}

"""What is fitted on the dev set: a temperature, the thresholds of several labels, and which answers to accept.

Temperature scaling (Guo et al., 2017) calibrates probabilities by one number. Logits z become z / T. T > 1
lowers confidence, T < 1 raises it, and the predicted class stays. T minimises the mean negative log-likelihood of the
dev labels, which is convex in β = 1/T: its slope, the mean over documents of E[z] - z_label under softmax(βz), never
falls as β grows, so the best T is where the slope changes sign. A dev set of a dozen documents may have no mistake,
and then the best T for it is far too low for others. So runs expect log T to be normally distributed around 0 with a
standard deviation of `TEMPERATURE_SPREAD`, and take the T that is most probable given the dev set.

The threshold of a label that makes its F1 highest is half of that F1, if probabilities are calibrated (Lipton et al.,
2014, "Optimal Thresholding of Classifiers to Maximize F1 Measure"). The best F1 itself is estimated from few positive
documents better than the place where it is reached: on folds of CUAD the decisions were better in micro-F1 than those
of the best threshold on other folds, and level in macro-F1.

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
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.metrics import checked_logits, checked_predictions, softmax, yes_or_no

if TYPE_CHECKING:
    from prefixprop.evaluate.predictions import PredictionSet

# Without mistakes on the dev set, or with more than by chance, the best T is 0 or infinite. The lower bound is the
# tighter one: a T too small makes mistakes on other documents certain, a T too large only lowers confidence.
LOWEST_TEMPERATURE = 0.05
HIGHEST_TEMPERATURE = 100.0
# Chosen on subsets of the dev set in results/evidence: with 12 to 20 documents the loss on the others is lower than
# without a prior, and with 300 it is the same. A smaller one corrects a very overconfident model too little.
TEMPERATURE_SPREAD = 0.5
_NO_POSITIVES = 0.5  # the threshold of a label that no document has


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature."""

    value: float

    def scale(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Return logits / T, shifted so that the largest of every document is 0."""
        return _shifted(checked_logits(logits)) / self.value

    def apply(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Return the calibrated probabilities of these logits."""
        return softmax(self.scale(logits))


def fit_temperature(logits: ArrayLike, labels: ArrayLike, spread: float = math.inf) -> Temperature:
    """Fit T between 0.05 and 100 to the logits [documents, classes] and labels of the dev set.

    `spread` is the standard deviation of log T that is expected before any document is seen; by default, no T is more
    likely than another.

    Labels of the same shape as the logits, 0 and 1, are those of documents that can have several. An absent class has
    the logit minus infinity. Where T makes no difference, as with equal logits, it is 1.
    """
    logit_array, label_array = checked_logits(logits), np.asarray(labels, dtype=np.int64)
    if label_array.shape == logit_array.shape:
        logit_array, label_array = yes_or_no(logit_array).reshape(-1, 2), label_array.ravel()
    shifted = _shifted(logit_array)
    impossible = np.isneginf(shifted[np.arange(len(shifted)), label_array])
    if impossible.any():
        row = int(impossible.argmax())
        raise ValueError(
            f"No temperature can be fitted: label {label_array[row]} in row {row} has the logit minus infinity, "
            "so the model calls it impossible at any temperature."
        )
    value = _best_temperature(shifted, label_array, spread)
    # Where the gain is smaller than a rounding error, as with all documents right and certain, T stays 1.
    gains = _mean_nll(shifted, label_array, value) < _mean_nll(shifted, label_array, 1.0)
    return Temperature(value if gains else 1.0)


def _best_temperature(shifted: NDArray[np.float64], labels: NDArray[np.int64], spread: float) -> float:
    from scipy.optimize import bisect  # slow to import, so only when needed

    of_label = shifted[np.arange(len(labels)), labels]

    def slope_sign(log_temperature: float) -> int:
        """The sign of the derivative of the mean negative log-posterior with respect to 1/T."""
        weights = np.exp(shifted / math.exp(log_temperature))
        # An absent class has weight 0, and 0 times minus infinity would be NaN.
        values = np.where(weights > 0, shifted, 0.0)
        expected = (weights * values).sum(axis=1) / weights.sum(axis=1)
        of_prior = -math.exp(log_temperature) * log_temperature / (spread**2 * len(labels))
        return int(np.sign((expected - of_label).mean() + of_prior))

    at_one = slope_sign(0.0)
    if at_one == 0:
        return 1.0
    # Where the loss falls as β grows, the best β is larger, hence T below 1; where it rises, T is above.
    bound = LOWEST_TEMPERATURE if at_one < 0 else HIGHEST_TEMPERATURE
    if slope_sign(math.log(bound)) == at_one:
        return bound
    return math.exp(bisect(slope_sign, 0.0, math.log(bound), xtol=1e-15))


def _shifted(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits - logits.max(axis=1, keepdims=True)
    return shifted


def _mean_nll(shifted: NDArray[np.float64], labels: NDArray[np.int64], temperature: float) -> float:
    scaled = shifted / temperature
    of_label = scaled[np.arange(len(labels)), labels]
    return float((np.log(np.exp(scaled).sum(axis=1)) - of_label).mean())


def fit_thresholds(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """A threshold for every label, from calibrated probabilities and labels [documents, labels], 0 and 1."""
    if not len(labels):
        return np.full(labels.shape[1], _NO_POSITIVES)
    from scipy.stats import rankdata

    # With the k most probable documents of a label chosen, F1 is 2 · (positives among them) / (k + all positives).
    # Equally probable ones are chosen together.
    order = np.argsort(-probabilities, axis=0)
    hits = np.take_along_axis(labels, order, axis=0).cumsum(axis=0)
    chosen = rankdata(-probabilities, method="max", axis=0).astype(np.int64)
    best = (2 * np.take_along_axis(hits, chosen - 1, axis=0) / (chosen + labels.sum(axis=0))).max(axis=0)
    return np.where(labels.any(axis=0), best / 2, _NO_POSITIVES)


def cross_fitted_decisions(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], folds: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """The decisions on every fold, by thresholds from the other folds."""
    decisions = np.zeros(probabilities.shape, dtype=bool)
    for fold in np.unique(folds):
        others = folds != fold
        decisions[~others] = probabilities[~others] >= fit_thresholds(probabilities[others], labels[others])
    return decisions


def decide(
    splits: Mapping[str, PredictionSet], temperature: Temperature, folds: NDArray[np.int64]
) -> tuple[dict[str, PredictionSet], NDArray[np.float64]]:
    """The predictions of a run with the labels that every document is given, and the thresholds, from the dev set.

    `folds` are those of the dev documents, whose own decisions are cross-fitted. Predictions are not calibrated here;
    the thresholds are for calibrated probabilities.
    """
    probabilities = {name: split.with_temperature(temperature).probabilities for name, split in splits.items()}
    labels = splits["dev"].known_labels
    thresholds = fit_thresholds(probabilities["dev"], labels)
    decisions = {name: found >= thresholds for name, found in probabilities.items()}
    decisions["dev"] = cross_fitted_decisions(probabilities["dev"], labels, folds)
    return {name: replace(split, decisions=decisions[name]) for name, split in splits.items()}, thresholds


# --- which answers can be accepted ----------------------------------------------------------------------------------

RISK = 0.1  # that the promise does not hold
GUARANTEE, ESTIMATE = "guarantee", "estimate"
ACCEPT, REVIEW = "accept", "review"
_STEPS = 50  # thresholds of a sequence, at most


@dataclass(frozen=True)
class Trust:
    """Which answers to accept; its fields are ready for JSON.

    Attributes:
        target: The share of accepted answers that should be right.
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
                f"No answer is accepted: {self.documents:,} documents do not show that {self.target:.1%} of any "
                f"answers are right. This takes at least {fewest_documents(self.target):,} answers without a mistake."
            )
        promise = f"{self.target:.1%} of these should be right (an estimate on {self.documents:,} documents)"
        if self.kind == GUARANTEE:
            promise = (
                f"{self.target:.1%} of these are right, with a probability of {1 - RISK:.0%} (a guarantee from "
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

"""What is fitted on the dev set: a temperature for the probabilities, and thresholds where there are several labels.

Temperature scaling (Guo et al., 2017) makes probabilities trustworthy by one number. Logits z become z / T. T > 1
lowers confidence, T < 1 raises it, and the predicted class stays. T minimises the mean negative log-likelihood of the
dev labels, which is convex in β = 1/T: its slope, the mean over documents of E[z] - z_label under softmax(βz), never
falls as β grows, so the best T is where the slope changes sign.

The threshold of a label that makes its F1 highest is half of that F1, if probabilities are calibrated (Lipton et al.,
2014, "Optimal Thresholding of Classifiers to Maximize F1 Measure"). The best F1 itself is estimated from few positive
documents better than the place where it is reached: on folds of CUAD the decisions were better in micro-F1 than those
of the best threshold on other folds, and level in macro-F1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.metrics import checked_labels, checked_logits, softmax, yes_or_no

if TYPE_CHECKING:
    from prefixprop.evaluate.predictions import PredictionSet

# Without mistakes on the dev set, or with more than by chance, the best T is 0 or infinite. The lower bound is the
# tighter one: a T too small makes mistakes on other documents certain, a T too large only lowers confidence.
LOWEST_TEMPERATURE = 0.05
HIGHEST_TEMPERATURE = 100.0
_LOWEST_SHIFTED = -1e290
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


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> Temperature:
    """Fit T between 0.05 and 100 to the logits [documents, classes] and labels of the dev set.

    Labels of the same shape as the logits, 0 and 1, are those of documents that can have several. An absent class has
    the logit minus infinity. Where T makes no difference, as with equal logits, it is 1.
    """
    logit_array = checked_logits(logits)
    if np.shape(labels) == logit_array.shape:
        logit_array, labels = yes_or_no(logit_array).reshape(-1, 2), np.asarray(labels).ravel()
    label_array = checked_labels(labels, *logit_array.shape)
    shifted = _shifted(logit_array)
    impossible = np.isneginf(shifted[np.arange(len(shifted)), label_array])
    if impossible.any():
        row = int(impossible.argmax())
        raise ValueError(
            f"No temperature can be fitted: label {label_array[row]} in row {row} has the logit minus infinity, "
            "so the model calls it impossible at any temperature."
        )
    value = _best_temperature(shifted, label_array)
    # Where the gain is smaller than a rounding error, as with all documents right and certain, T stays 1.
    gains = _mean_nll(shifted, label_array, value) < _mean_nll(shifted, label_array, 1.0)
    return Temperature(value if gains else 1.0)


def _best_temperature(shifted: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    from scipy.optimize import bisect  # slow to import, so only when needed

    of_label = shifted[np.arange(len(labels)), labels]

    def slope_sign(log_temperature: float) -> int:
        """The sign of the derivative of the mean negative log-likelihood with respect to 1/T."""
        weights = np.exp(shifted / math.exp(log_temperature))
        # An absent class has weight 0, and 0 times minus infinity would be NaN.
        values = np.where(weights > 0, shifted, 0.0)
        expected = (weights * values).sum(axis=1) / weights.sum(axis=1)
        return int(np.sign((expected - of_label).mean()))

    at_one = slope_sign(0.0)
    if at_one == 0:
        return 1.0
    # Where the loss falls as β grows, the best β is larger, hence T below 1; where it rises, T is above.
    bound = LOWEST_TEMPERATURE if at_one < 0 else HIGHEST_TEMPERATURE
    if slope_sign(math.log(bound)) == at_one:
        return bound
    return math.exp(bisect(slope_sign, 0.0, math.log(bound), xtol=1e-15))


def _shifted(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        shifted = logits - logits.max(axis=1, keepdims=True)
    # Only an absent class may be at minus infinity, also after a difference or a division that overflows.
    return np.where(np.isneginf(logits), -np.inf, shifted.clip(min=_LOWEST_SHIFTED))


def _mean_nll(shifted: NDArray[np.float64], labels: NDArray[np.int64], temperature: float) -> float:
    scaled = shifted / temperature
    of_label = scaled[np.arange(len(labels)), labels]
    return float((np.log(np.exp(scaled).sum(axis=1)) - of_label).mean())


def fit_thresholds(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """A threshold for every label, from calibrated probabilities and labels [documents, labels], 0 and 1."""
    if not len(labels):
        return np.full(labels.shape[1], _NO_POSITIVES)
    # With the k most probable documents of a label chosen, F1 is 2 · (positives among them) / (k + all positives).
    order = np.argsort(-probabilities, axis=0, kind="stable")
    hits = np.take_along_axis(labels, order, axis=0).cumsum(axis=0)
    chosen = np.arange(1, len(labels) + 1)[:, None]
    best = (2 * hits / (chosen + labels.sum(axis=0))).max(axis=0)
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

"""Temperature scaling (Guo et al., 2017): one number, fitted on the dev set, that makes probabilities trustworthy.

Logits z become z / T. T > 1 lowers confidence, T < 1 raises it, and the predicted class stays. T minimises the mean
negative log-likelihood of the dev labels, which is convex in β = 1/T: its slope, the mean over documents of
E[z] - z_label under softmax(βz), never falls as β grows, so the best T is where the slope changes sign.

How well probabilities are calibrated, before and after, is in `prefixprop.evaluate.metrics`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.metrics import checked_labels, checked_logits, softmax, yes_or_no

# Without mistakes on the dev set, or with more than by chance, the best T is 0 or infinite. The lower bound is the
# tighter one: a T too small makes mistakes on other documents certain, a T too large only lowers confidence.
LOWEST_TEMPERATURE = 0.05
HIGHEST_TEMPERATURE = 100.0
_LOWEST_SHIFTED = -1e290


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

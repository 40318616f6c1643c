"""Temperature scaling (Guo et al., 2017): one number, fitted on dev, that makes probabilities trustworthy.

Logits z become z / T. T > 1 takes confidence away, T < 1 adds some, and the predicted class stays. T minimises the
mean negative log-likelihood of the dev labels, which is convex in β = 1/T: its slope, the mean over documents of
E[z] - z_label under softmax(βz), never falls as β grows, so T is where the slope changes sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.predictions import checked_labels, checked_logits, checked_probabilities, softmax

# Where dev is predicted without an error, or worse than by chance, the best T is 0 or infinite. The lower bound is
# the tighter one: a T too small makes mistakes on other documents certain, a T too large only makes all unsure.
LOWEST_TEMPERATURE = 0.05
HIGHEST_TEMPERATURE = 100.0
_LOWEST_SHIFTED = -1e290


def is_bound(temperature: float) -> bool:
    """Whether it is the lowest or the highest temperature that a fit may return."""
    return temperature in (LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE)


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature, and the mean negative log-likelihood of the dev labels without and with it.

    Both likelihoods are computed from the logits, without the floor of `negative_log_likelihood`.
    """

    value: float
    nll_before: float
    nll_after: float

    @property
    def at_bound(self) -> bool:
        """Whether a bound stopped the fit: dev had too few mistakes, or too few right answers, to say more."""
        return is_bound(self.value)

    def scale(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Return logits / T, shifted so that the largest of every document is 0."""
        return _shifted(checked_logits(logits)) / self.value

    def apply(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Return the calibrated probabilities of these logits."""
        return softmax(self.scale(logits))

    def apply_to_probabilities(self, probabilities: ArrayLike) -> NDArray[np.float64]:
        """Return the calibrated probabilities of these probabilities; 0 stays 0.

        The logarithm of softmax is the logits up to a constant per document, which softmax ignores.
        """
        with np.errstate(divide="ignore"):
            return self.apply(np.log(checked_probabilities(probabilities).clip(min=0)))


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> Temperature:
    """Fit T between 0.05 and 100 to the logits [documents, classes] and labels of dev.

    An absent class has the logit minus infinity. Where T makes no difference, as with equal logits, it is 1.
    """
    logit_array = checked_logits(logits)
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
    before, after = _mean_nll(shifted, label_array, 1.0), _mean_nll(shifted, label_array, value)
    # Where the gain is smaller than a rounding error, as with all documents right and certain, T stays 1.
    if after >= before:
        return Temperature(1.0, before, before)
    return Temperature(value, before, after)


def _best_temperature(shifted: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    at_one = _slope_sign(shifted, labels, 1.0)
    if at_one == 0:
        return 1.0
    # Where the loss falls as β grows, the best β is larger, hence T below 1; where it rises, T is above.
    bound = LOWEST_TEMPERATURE if at_one < 0 else HIGHEST_TEMPERATURE
    if _slope_sign(shifted, labels, bound) == at_one:
        return bound
    same_side, other_side = 0.0, math.log(bound)
    for _ in range(60):  # halves the interval of log T until its ends are equal as floats
        middle = (same_side + other_side) / 2
        if _slope_sign(shifted, labels, math.exp(middle)) == at_one:
            same_side = middle
        else:
            other_side = middle
    return math.exp(same_side)


def _shifted(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        shifted = logits - logits.max(axis=1, keepdims=True)
    # Only an absent class may be at minus infinity, also after a difference or a division that overflows.
    return np.where(np.isneginf(logits), -np.inf, shifted.clip(min=_LOWEST_SHIFTED))


def _mean_nll(shifted: NDArray[np.float64], labels: NDArray[np.int64], temperature: float) -> float:
    scaled = shifted / temperature
    of_label = scaled[np.arange(len(labels)), labels]
    return float((np.log(np.exp(scaled).sum(axis=1)) - of_label).mean())


def _slope_sign(shifted: NDArray[np.float64], labels: NDArray[np.int64], temperature: float) -> int:
    """The sign of the derivative of the mean negative log-likelihood with respect to 1/T."""
    weights = np.exp(shifted / temperature)
    # An absent class has weight 0, and 0 times minus infinity would be NaN.
    values = np.where(weights > 0, shifted, 0.0)
    expected = (weights * values).sum(axis=1) / weights.sum(axis=1)
    return int(np.sign((expected - shifted[np.arange(len(labels)), labels]).mean()))

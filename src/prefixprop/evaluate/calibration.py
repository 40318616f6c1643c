"""Measures of how far a model's probabilities can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.predictions import checked_predictions

DEFAULT_BINS = 15  # the number in Guo et al. (2017)
# The probability of the label counts as at least this much, so that one document cannot make the mean infinite.
SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Documents grouped by confidence, the probability of their most probable class.

    Bin m holds confidences in (edges[m], edges[m+1]]. `accuracy` and `confidence` are means over the documents of
    each bin, and NaN in a bin without documents.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    confidence: NDArray[np.float64]

    @property
    def gaps(self) -> NDArray[np.float64]:
        """|accuracy - confidence| of every bin, 0 in a bin without documents."""
        return np.where(self.counts > 0, np.abs(self.accuracy - self.confidence), 0.0)

    @property
    def expected_error(self) -> float:
        """The mean gap over documents: ECE."""
        return float(self.gaps @ self.counts / self.counts.sum())

    @property
    def maximum_error(self) -> float:
        """The largest gap of all bins: MCE."""
        return float(self.gaps.max())


@dataclass(frozen=True)
class CalibrationMetrics:
    """All measures of calibration; each is 0 at best."""

    ece: float
    adaptive_ece: float
    mce: float
    brier: float
    nll: float


def calibration_metrics(probabilities: ArrayLike, labels: ArrayLike, bins: int = DEFAULT_BINS) -> CalibrationMetrics:
    """Compute every measure of this module; `bins` is used by the first three."""
    equal_width = reliability(probabilities, labels, bins)
    return CalibrationMetrics(
        ece=equal_width.expected_error,
        adaptive_ece=adaptive_calibration_error(probabilities, labels, bins),
        mce=equal_width.maximum_error,
        brier=brier_score(probabilities, labels),
        nll=negative_log_likelihood(probabilities, labels),
    )


def reliability(probabilities: ArrayLike, labels: ArrayLike, bins: int = DEFAULT_BINS) -> Reliability:
    """Group documents into bins of equal width, which ECE, MCE and the reliability diagram share.

    As in Guo et al. (2017), bin m of M is open on the left and closed on the right, ((m-1)/M, m/M], so a confidence
    of 1 is in the last bin.
    """
    _check_bins(bins)
    # Dividing, unlike linspace, gives the floats nearest to m/M: a confidence of 0.7 is on the edge 7/10.
    return _grouped(*_confidence_and_correct(probabilities, labels), edges=np.arange(bins + 1) / bins)


def adaptive_reliability(probabilities: ArrayLike, labels: ArrayLike, bins: int = DEFAULT_BINS) -> Reliability:
    """Group documents into at most `bins` bins of equally many documents (Nguyen & O'Connor, 2015).

    Sorted by confidence, the i-th of n documents falls into bin ⌊(i - ½) · bins / n⌋. Documents of equal confidence
    stay together, in the bin of the middle one, so that the bins do not depend on the order of documents; bins left
    without documents are dropped.
    """
    _check_bins(bins)
    confidence, correct = _confidence_and_correct(probabilities, labels)
    values, repeats = np.unique(confidence, return_counts=True)
    ends = repeats.cumsum()
    bin_of_value = (2 * ends - repeats) * bins // (2 * len(confidence))
    is_last_of_bin = np.append(np.diff(bin_of_value) > 0, True)
    upper_edges = values[is_last_of_bin]
    upper_edges[-1] = 1.0
    return _grouped(confidence, correct, edges=np.insert(upper_edges, 0, 0.0))


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = DEFAULT_BINS) -> float:
    """Return the ECE of Guo et al. (2017), "On Calibration of Modern Neural Networks".

    Documents are grouped by the probability of their most probable class into bins of equal width, and the error is
    the mean over documents of their bin's |accuracy - mean confidence|.
    """
    return reliability(probabilities, labels, bins).expected_error


def maximum_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = DEFAULT_BINS) -> float:
    """Return the MCE of Guo et al. (2017): the largest |accuracy - mean confidence| of the bins of ECE."""
    return reliability(probabilities, labels, bins).maximum_error


def adaptive_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = DEFAULT_BINS) -> float:
    """Return ECE over bins of equally many documents, which crowd where the confidences do.

    The bins are those of Nguyen & O'Connor (2015), "Posterior Calibration and Exploratory Analysis for NLP Models";
    the gaps are absolute and weighted by documents as in ECE, where they take squares. Like ECE it looks at the most
    probable class alone; the adaptive error of Nixon et al. (2019) averages over all classes instead.
    """
    return adaptive_reliability(probabilities, labels, bins).expected_error


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean over documents of Σ (probability - [class is the label])² over all classes: 0 to 2.

    This is the definition of Brier (1950); with two classes it is twice the one that looks at class 1 alone.
    """
    probability_array, label_array = checked_predictions(probabilities, labels)
    truth = np.eye(probability_array.shape[1])[label_array]
    return _mean(((probability_array - truth) ** 2).sum(axis=1))


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean over documents of -log of the label's probability, which counts as at least 2.2e-16."""
    probability_array, label_array = checked_predictions(probabilities, labels)
    of_label = probability_array[np.arange(len(label_array)), label_array]
    return _mean(-np.log(of_label.clip(SMALLEST_PROBABILITY, 1.0)))


def _confidence_and_correct(
    probabilities: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    probability_array, label_array = checked_predictions(probabilities, labels)
    # Rounding within the tolerance may leave a confidence just above 1, and the error with it.
    confidence = probability_array.max(axis=1).clip(max=1.0)
    correct = probability_array.argmax(axis=1) == label_array
    # Sums of floats depend on their order; sorted, they are the same to the last bit for any order of documents.
    order = np.lexsort((correct, confidence))
    return confidence[order], correct[order]


def _grouped(confidence: NDArray[np.float64], correct: NDArray[np.bool_], edges: NDArray[np.float64]) -> Reliability:
    bins = len(edges) - 1
    bin_of_document = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(bin_of_document, minlength=bins)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(bin_of_document, weights=correct, minlength=bins) / counts
        mean_confidence = np.bincount(bin_of_document, weights=confidence, minlength=bins) / counts
    return Reliability(edges=edges, counts=counts, accuracy=accuracy, confidence=mean_confidence)


def _mean(values: NDArray[np.float64]) -> float:
    return math.fsum(values) / len(values)


def _check_bins(bins: int) -> None:
    if not isinstance(bins, (int, np.integer)) or bins < 1:
        raise ValueError(f"The number of bins must be a whole number of at least 1, got {bins!r}.")

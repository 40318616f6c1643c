"""Measures of how far a model's confidence can be trusted."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from prefixprop.evaluation.predictions import checked_predictions


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Return the expected calibration error of Guo et al. (2017), "On Calibration of Modern Neural Networks".

    Documents are grouped by the probability of their most probable class into bins of equal width, and the
    error is the mean over documents of their bin's |accuracy - mean confidence|. As in the paper, bin m of M
    is open on the left and closed on the right, ((m-1)/M, m/M], so a confidence of 1 is in the last bin.
    """
    if bins < 1:
        raise ValueError(f"The number of bins must be at least 1, got {bins}.")
    probability_array, label_array = checked_predictions(probabilities, labels)
    # Rounding within the tolerance may leave a confidence just above 1, and the error with it.
    confidence = probability_array.max(axis=1).clip(max=1.0)
    correct = probability_array.argmax(axis=1) == label_array
    # Dividing, unlike linspace, gives the floats nearest to m/M: a confidence of 0.7 is on the edge 7/10.
    inner_edges = np.arange(1, bins) / bins
    bin_of_document = np.searchsorted(inner_edges, confidence, side="left")
    # A bin's |accuracy - confidence| times its number of documents is its |sum of (correct - confidence)|.
    gap_sums = np.bincount(bin_of_document, weights=correct - confidence, minlength=bins)
    return float(np.abs(gap_sums).sum() / len(label_array))

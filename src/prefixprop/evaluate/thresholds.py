"""Which labels a document is given, where it can have several: those above a threshold of their own.

The threshold of a label that makes its F1 highest is half of that F1, if probabilities are calibrated (Lipton et al.,
2014, "Optimal Thresholding of Classifiers to Maximize F1 Measure"). The best F1 itself is estimated from few positive
documents better than the place where it is reached: on folds of CUAD the decisions were better in micro-F1 than those
of the best threshold on other folds, and level in macro-F1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from prefixprop.evaluate.calibration import Temperature
from prefixprop.evaluate.predictions import PredictionSet

_NO_POSITIVES = 0.5  # the threshold of a label that no document has

Array = NDArray[np.float64]


def fit_thresholds(probabilities: Array, labels: NDArray[np.int64]) -> Array:
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
    probabilities: Array, labels: NDArray[np.int64], folds: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """The decisions on every fold, by thresholds from the other folds."""
    decisions = np.zeros(probabilities.shape, dtype=bool)
    for fold in np.unique(folds):
        others = folds != fold
        decisions[~others] = probabilities[~others] >= fit_thresholds(probabilities[others], labels[others])
    return decisions


def decide(
    splits: Mapping[str, PredictionSet], temperature: Temperature, folds: NDArray[np.int64]
) -> tuple[dict[str, PredictionSet], Array]:
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

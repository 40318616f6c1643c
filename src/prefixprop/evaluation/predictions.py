"""Checking predicted probabilities and their labels, which every measure starts from."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Wide enough for probabilities that were computed or stored in half precision.
PROBABILITY_TOLERANCE = 1e-3


def checked_predictions(probabilities: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities [documents, classes] and labels [documents] as arrays, or raise `ValueError`."""
    checked = checked_probabilities(probabilities)
    label_array = np.asarray(labels)
    documents, classes = checked.shape
    if label_array.shape != (documents,):
        raise ValueError(
            f"Labels must be one per document, shape ({documents},), but their shape is {label_array.shape}."
        )
    if label_array.dtype.kind not in "iub":
        raise ValueError(f"Labels must be integers, but their type is {label_array.dtype}.")
    outside = (label_array < 0) | (label_array >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(f"Label {label_array[row]} in row {row} is outside 0 to {classes - 1}.")
    return checked, label_array.astype(np.int64)


def checked_probabilities(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Return the probabilities [documents, classes] as an array, or raise `ValueError`."""
    array = np.asarray(probabilities, dtype=np.float64)
    if array.size == 0:
        raise ValueError("There are no predictions to evaluate.")
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(
            "Probabilities must have the shape (documents, classes) with at least two classes, "
            f"but their shape is {array.shape}."
        )
    if not np.isfinite(array).all():
        row = int((~np.isfinite(array)).any(axis=1).argmax())
        raise ValueError(f"Probabilities must be finite, but row {row} is {array[row].tolist()}.")
    outside = ((array < -PROBABILITY_TOLERANCE) | (array > 1 + PROBABILITY_TOLERANCE)).any(axis=1)
    wrong_sum = np.abs(array.sum(axis=1) - 1) > PROBABILITY_TOLERANCE
    if (outside | wrong_sum).any():
        row = int((outside | wrong_sum).argmax())
        raise ValueError(
            f"Each row of probabilities must lie between 0 and 1 and sum to 1, but row {row} is "
            f"{array[row].tolist()}; pass the softmax of the logits."
        )
    return array

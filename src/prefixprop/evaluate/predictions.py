"""Checking predicted probabilities or logits and their labels, which every measure starts from."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Wide enough for probabilities that were computed or stored in half precision.
PROBABILITY_TOLERANCE = 1e-3


def checked_predictions(probabilities: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities [documents, classes] and labels [documents] as arrays, or raise `ValueError`."""
    checked = checked_probabilities(probabilities)
    return checked, checked_labels(labels, *checked.shape)


def checked_probabilities(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Return the probabilities [documents, classes] as an array, or raise `ValueError`."""
    array = _number_table(probabilities, "Probabilities")
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


def checked_logits(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the logits [documents, classes] as an array, or raise `ValueError`.

    Minus infinity stands for a class that a document cannot have, such as a candidate that its question lacks.
    """
    array = _number_table(logits, "Logits")
    wrong = (np.isnan(array) | np.isposinf(array)).any(axis=1) | np.isneginf(array).all(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            "Logits must be finite, or minus infinity for an absent class, with at least one class present, "
            f"but row {row} is {array[row].tolist()}."
        )
    return array


def checked_labels(labels: ArrayLike, documents: int, classes: int) -> NDArray[np.int64]:
    """Return one label between 0 and `classes` - 1 per document as an array, or raise `ValueError`."""
    array = np.asarray(labels)
    if array.shape != (documents,):
        raise ValueError(f"Labels must be one per document, shape ({documents},), but their shape is {array.shape}.")
    if array.dtype.kind not in "iub":
        raise ValueError(f"Labels must be integers, but their type is {array.dtype}.")
    outside = (array < 0) | (array >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(f"Label {array[row]} in row {row} is outside 0 to {classes - 1}.")
    return array.astype(np.int64)


def check_candidates(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], candidate_counts: ArrayLike
) -> None:
    """Raise `ValueError` unless every question's label and probabilities stay within its number of candidates."""
    counts = np.asarray(candidate_counts)
    questions, columns = probabilities.shape
    if counts.shape != (questions,) or counts.dtype.kind not in "iu":
        raise ValueError(
            f"Candidate counts must be one integer per question, shape ({questions},), "
            f"but their shape is {counts.shape} and their type {counts.dtype}."
        )
    if ((counts < 1) | (counts > columns)).any():
        row = int(((counts < 1) | (counts > columns)).argmax())
        raise ValueError(f"Question {row} has {counts[row]} candidates, but there must be 1 to {columns}.")
    if (labels >= counts).any():
        row = int((labels >= counts).argmax())
        raise ValueError(f"Label {labels[row]} of question {row} is outside its {counts[row]} candidates.")
    absent = np.arange(columns) >= counts[:, None]
    if (absent & (probabilities != 0)).any():
        row = int((absent & (probabilities != 0)).any(axis=1).argmax())
        raise ValueError(
            f"Question {row} has {counts[row]} candidates, but gives a probability to more: "
            f"{probabilities[row].tolist()}; give absent candidates the logit minus infinity."
        )


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the probabilities [documents, classes] of these logits; an absent class gets 0."""
    array = checked_logits(logits)
    # A shift by the largest logit changes nothing and cannot overflow to infinity upwards.
    with np.errstate(over="ignore"):
        weights = np.exp(array - array.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _number_table(values: ArrayLike, what: str) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what} must be numbers in rows of equal length: {error}") from error
    if array.size == 0:
        raise ValueError("There are no predictions to evaluate.")
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(
            f"{what} must have the shape (documents, classes) with at least two classes, "
            f"but their shape is {array.shape}."
        )
    return array

"""Metrics of predicted probabilities: how often they are right, and how well their confidence matches that.

Most are scikit-learn's; it has no calibration errors, which are computed here. Labels are [documents], or
[documents, labels] of 0 and 1 where a document can have several: then every label is a yes/no question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

DEFAULT_BINS = 15  # the number in Guo et al. (2017)
_TOLERANCE = 1e-3  # wide enough for probabilities that were computed or stored in half precision


def evaluate_predictions(probabilities: ArrayLike, labels: ArrayLike, *, questions: bool = False) -> dict[str, float]:
    """Return all metrics of probabilities [documents, classes] by name, all finite, ready for JSON.

    | metric | what it is |
    | --- | --- |
    | `accuracy` | share of documents whose most probable class is the label |
    | `micro_f1` | the same number, because every document has one label |
    | `macro_f1`, `macro_precision`, `macro_recall` | means over the classes that occur among labels or predictions |
    | `binary_f1` | F1 of class 1, only with two classes |
    | `ece`, `mce` | mean and largest gap between accuracy and confidence, see `reliability` |
    | `adaptive_ece` | the mean gap over bins of equally many documents |
    | `brier` | mean of Σ (probability - [class is the label])² over all classes, 0 to 2 (Brier, 1950) |
    | `nll` | mean of -log of the label's probability, which counts as at least 2.2e-16 |
    | `documents` | how many there are |

    With `questions` the columns are candidates, which differ from row to row (WikiHop), and metrics of classes are
    left out.
    """
    from sklearn import metrics  # slow to import, so only when needed

    probability_array, label_array = checked_predictions(probabilities, labels)
    # Sums of floats depend on their order; sorted, they are the same to the last bit for any order of documents.
    order = np.lexsort((label_array, *probability_array.T))
    probability_array, label_array = probability_array[order], label_array[order]
    predicted = probability_array.argmax(axis=1)
    found = {"accuracy": metrics.accuracy_score(label_array, predicted)}
    if not questions:
        of_classes = metrics.precision_recall_fscore_support(label_array, predicted, average="macro", zero_division=0)
        found |= {"micro_f1": found["accuracy"], "macro_f1": of_classes[2]}
        found |= {"macro_precision": of_classes[0], "macro_recall": of_classes[1]}
        if probability_array.shape[1] == 2:
            found["binary_f1"] = metrics.f1_score(label_array, predicted, zero_division=0)
    found |= _calibration(probability_array, label_array)
    return {name: float(value) for name, value in found.items()} | {"documents": len(label_array)}


def evaluate_several_labels(probabilities: ArrayLike, labels: ArrayLike, decisions: ArrayLike) -> dict[str, float]:
    """Like `evaluate_predictions`, for several labels per document: all three are [documents, labels].

    | metric | what it is |
    | --- | --- |
    | `average_precision` | mean over the labels that occur; needs no thresholds |
    | `micro_average_precision` | of all labels of all documents, ranked together |
    | `micro_f1`, `micro_precision`, `micro_recall` | of all `decisions` together |
    | `macro_f1`, `macro_precision`, `macro_recall` | means over the labels that occur among labels or decisions |
    | `accuracy` | share of documents with every label right, and no other |
    | `ece`, `mce`, `adaptive_ece`, `brier`, `nll` | of the answers yes and no for every label of every document |
    | `documents` | how many there are |
    """
    from sklearn import metrics

    label_array, decided = np.asarray(labels), np.asarray(decisions).astype(np.int64)
    pairs, answers = checked_predictions(probabilities, label_array)
    probability_array = pairs[:, 1].reshape(label_array.shape)
    found = {
        "average_precision": average_precision(probability_array, label_array),
        "micro_average_precision": average_precision(probability_array.reshape(-1, 1), label_array.reshape(-1, 1)),
    }
    counted = (label_array | decided).any(axis=0)
    of_labels = metrics.precision_recall_fscore_support(label_array, decided, average=None, zero_division=0)
    of_all = metrics.precision_recall_fscore_support(label_array, decided, average="micro", zero_division=0)
    for place, name in ((2, "f1"), (0, "precision"), (1, "recall")):
        found[f"micro_{name}"] = of_all[place]
        found[f"macro_{name}"] = of_labels[place][counted].mean() if counted.any() else 0.0
    found["accuracy"] = metrics.accuracy_score(label_array, decided)
    order = np.lexsort((answers, pairs[:, 1]))
    found |= _calibration(pairs[order], answers[order])
    return {name: float(value) for name, value in found.items()} | {"documents": len(label_array)}


def average_precision(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The mean average precision of scores [documents, labels] over the labels that occur; 0 if none does."""
    from sklearn.metrics import average_precision_score

    of_labels = [
        average_precision_score(*column) for column in zip(labels.T, scores.T, strict=True) if column[0].any()
    ]
    return float(np.mean(of_labels)) if of_labels else 0.0


def _calibration(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    from sklearn import metrics

    equal_width, classes = reliability(probabilities, labels), range(probabilities.shape[1])
    # scikit-learn refuses rounding errors.
    exact = probabilities.clip(min=0)
    exact /= exact.sum(axis=1, keepdims=True)
    return {
        "ece": equal_width.expected_error,
        "adaptive_ece": reliability(probabilities, labels, adaptive=True).expected_error,
        "mce": equal_width.maximum_error,
        "brier": metrics.brier_score_loss(labels, exact, labels=classes, scale_by_half=False),
        "nll": metrics.log_loss(labels, exact, labels=classes),
    }


def yes_or_no(log_odds: ArrayLike) -> NDArray[np.float64]:
    """The logits of no and yes, [..., 2], for log-odds: the same question with two classes."""
    array = np.asarray(log_odds, dtype=np.float64)
    return np.stack([np.zeros_like(array), array], axis=-1)


def log_odds(answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log-odds of yes, for logits or log-probabilities of no and yes, [..., 2]."""
    odds: NDArray[np.float64] = answers[..., 1] - answers[..., 0]
    return odds


def confusion_counts(probabilities: ArrayLike, labels: ArrayLike) -> NDArray[np.int64]:
    """Count documents by label (rows) and most probable class (columns), [classes, classes]."""
    from sklearn.metrics import confusion_matrix

    probability_array, label_array = checked_predictions(probabilities, labels)
    classes = range(probability_array.shape[1])
    counts: NDArray[np.int64] = confusion_matrix(label_array, probability_array.argmax(axis=1), labels=classes)
    return counts


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


def reliability(
    probabilities: ArrayLike, labels: ArrayLike, bins: int = DEFAULT_BINS, *, adaptive: bool = False
) -> Reliability:
    """Group documents by confidence into bins, for the calibration errors and the reliability diagram.

    The bins have equal width, as in Guo et al. (2017), "On Calibration of Modern Neural Networks": bin m of M is
    ((m-1)/M, m/M]. With `adaptive` there are at most `bins` bins of equally many documents, as in Nguyen & O'Connor
    (2015), "Posterior Calibration and Exploratory Analysis for NLP Models". Sorted by confidence, the i-th of n
    documents falls into bin ⌊(i - ½) · bins / n⌋. Documents of equal confidence stay together, in the bin of the
    middle one, so that the bins do not depend on the order of documents; empty bins are dropped.
    """
    probability_array, label_array = checked_predictions(probabilities, labels)
    confidence = probability_array.max(axis=1).clip(max=1.0)
    correct = probability_array.argmax(axis=1) == label_array
    # Dividing, unlike linspace, gives the floats nearest to m/M: a confidence of 0.7 is on the edge 7/10.
    edges = _adaptive_edges(confidence, bins) if adaptive else np.arange(bins + 1) / bins
    bin_of_document = np.searchsorted(edges[1:-1], confidence, side="left")
    counts, right, total = (
        np.bincount(bin_of_document, weights=weights, minlength=len(edges) - 1)
        for weights in (None, correct, confidence)
    )
    with np.errstate(invalid="ignore"):
        return Reliability(edges, counts, accuracy=right / counts, confidence=total / counts)


def _adaptive_edges(confidence: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    values, repeats = np.unique(confidence, return_counts=True)
    bin_of_value = (2 * repeats.cumsum() - repeats) * bins // (2 * len(confidence))
    is_last_of_bin = np.diff(bin_of_value) > 0
    return np.array([0.0, *values[:-1][is_last_of_bin], 1.0])


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the probabilities [documents, classes] of these logits; an absent class gets 0."""
    from scipy import special

    probabilities: NDArray[np.float64] = special.softmax(checked_logits(logits), axis=1)
    return probabilities


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-probabilities over the last axis; for the few numbers of a batch, SciPy's takes three times as long."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def checked_predictions(probabilities: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities [documents, classes] and labels [documents] as arrays; `ValueError` for logits.

    Where documents can have several labels, what is returned are all yes/no questions, with classes no and yes.
    """
    array, label_array = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if label_array.shape == array.shape:
        array, label_array = np.stack([1 - array, array], axis=-1).reshape(-1, 2), label_array.ravel()
    if not np.allclose(array.sum(axis=1), 1, atol=_TOLERANCE) or (array < -_TOLERANCE).any():
        raise ValueError("Each row of probabilities must lie between 0 and 1 and sum to 1: the softmax of logits.")
    return array, label_array


def checked_logits(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the logits [documents, classes] as an array, or raise `ValueError`.

    Minus infinity stands for a class that a document cannot have, such as a candidate that its question lacks.
    """
    array = np.asarray(logits, dtype=np.float64)
    wrong = (np.isnan(array) | np.isposinf(array)).any(axis=1) | np.isneginf(array).all(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            "Logits must be finite, or minus infinity for an absent class, with at least one class present, "
            f"but row {row} is {array[row].tolist()}."
        )
    return array

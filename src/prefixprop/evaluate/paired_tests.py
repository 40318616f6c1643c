"""Whether one method is better than another on the same documents: paired bootstrap and McNemar's test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.prediction_set import PredictionSet
from prefixprop.evaluate.significance import CONFIDENCE, Alternative, SignificanceTest, check_alternative

DEFAULT_RESAMPLES = 20_000
# How many counts are drawn at once: 128 MiB.
_COUNTS_AT_ONCE = 2**24
_ROUNDING = 1e-12


@dataclass(frozen=True)
class PairedBootstrap(SignificanceTest):
    """A paired bootstrap; `interval` holds 95 % of the resampled differences."""

    interval: tuple[float, float] = (float("nan"), float("nan"))


@dataclass(frozen=True)
class McNemarTest(SignificanceTest):
    """McNemar's test, with the number of documents that only one of the two runs gets right."""

    only_first: int = 0
    only_second: int = 0


def paired_scores(first: PredictionSet, second: PredictionSet) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which documents each of two runs gets right, in the first one's order.

    Raises `ValueError` unless both are about the same documents, with the same labels.
    """
    rows = {document_id: row for row, document_id in enumerate(second.ids)}
    lacking = [document_id for document_id in first.ids if document_id not in rows]
    if lacking or len(first.ids) != len(second.ids):
        strange = lacking or sorted(set(second.ids) - set(first.ids))
        raise ValueError(
            f"The two runs were judged on different documents: {len(first.ids)} and {len(second.ids)} of them, and "
            f"{strange[0]!r} is in one only; compare runs on the same split of the same data."
        )
    order = np.array([rows[document_id] for document_id in first.ids], dtype=np.int64)
    correct = _correct(first), _correct(second)[order]
    for row, other in enumerate(order):
        names = _label_name(first, row), _label_name(second, int(other))
        if names[0] != names[1]:
            raise ValueError(
                f"Document {first.ids[row]!r} has the label {names[0]!r} in one run and {names[1]!r} in the other; "
                "compare runs on the same data."
            )
    return correct


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    alternative: Alternative = "greater",
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
) -> PairedBootstrap:
    """Resample seeds and documents, and count how often the difference of the means disappears.

    `first` and `second` are [seeds, documents], or [documents] of one run each: one number per document, such as
    whether the run gets it right (then the means are accuracies, and micro-F1s where every document has one label).
    A sample has seeds of each method, and the same documents for both: its spread is what other seeds and other
    documents would change. The one-tailed p-value is the share of samples in which the first is not ahead; the
    data itself counts as one of them, so that the p-value is never 0.
    """
    check_alternative(alternative)
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}.")
    one, other = _scores(first), _scores(second)
    _check_paired(one, other)
    differences = _resampled_differences(one, other, resamples, np.random.default_rng(seed))
    not_ahead = (1 + int((differences <= 0).sum())) / (1 + resamples)
    not_behind = (1 + int((differences >= 0).sum())) / (1 + resamples)
    p_value = not_ahead if alternative == "greater" else min(1.0, 2 * min(not_ahead, not_behind))
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    difference = float(one.mean() - other.mean())
    return PairedBootstrap("paired bootstrap", difference, p_value, interval=(float(low), float(high)))


def mcnemar_test(first: ArrayLike, second: ArrayLike, alternative: Alternative = "two-sided") -> McNemarTest:
    """McNemar's test of whether two runs get the same number of documents right, exact at every size.

    `first` and `second` say for every document whether the run gets it right. Only documents that exactly one of
    the two gets right count; without a real difference, each run is equally likely to be that one.
    """
    check_alternative(alternative)
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    _check_paired(one, other, dimensions=1)
    if not np.isin([one, other], [0, 1]).all():
        raise ValueError("McNemar's test takes right (1) or wrong (0) for every document, got other numbers.")
    only_first, only_second = int((one > other).sum()), int((one < other).sum())
    discordant = only_first + only_second
    from scipy import stats

    p_value = float(stats.binomtest(only_first, discordant, alternative=alternative).pvalue) if discordant else 1.0
    # Sums of probabilities may come out above 1 by a rounding error.
    return McNemarTest(
        "McNemar's test", float((one - other).mean()), min(1.0, p_value), None, only_first, only_second
    )


def _scores(values: ArrayLike) -> NDArray[np.float64]:
    """The numbers as [seeds, documents]."""
    array = np.asarray(values, dtype=np.float64)
    return array[None] if array.ndim == 1 else array


def _check_paired(one: NDArray[np.float64], other: NDArray[np.float64], dimensions: int = 2) -> None:
    is_table = one.ndim == other.ndim == dimensions
    if not (is_table and one.size and other.size) or one.shape[-1] != other.shape[-1]:
        raise ValueError(
            f"A paired test needs one number per document from each run, got shapes {one.shape} and {other.shape}."
        )
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise ValueError("A paired test needs finite numbers, got NaN or infinity.")


def _resampled_differences(
    one: NDArray[np.float64], other: NDArray[np.float64], resamples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """The differences of the means of `resamples` samples, drawn with replacement."""
    # Documents that the same runs get right are drawn together: some hundred numbers per sample, not thousands.
    kinds, counts = np.unique(np.concatenate([one, other]), axis=1, return_counts=True)
    step = max(1, _COUNTS_AT_ONCE // len(counts))
    found = []
    for start in range(0, resamples, step):
        samples = min(step, resamples - start)
        documents = _shares(generator, counts, samples)
        first, second = (
            ((_shares(generator, np.ones(len(seeds)), samples) @ seeds) * documents).sum(axis=1)
            for seeds in np.split(kinds, [len(one)])
        )
        found.append(first - second)
    differences: NDArray[np.float64] = np.concatenate(found)
    # Sums of fractions leave a tie a rounding error away from zero.
    differences[np.abs(differences) <= _ROUNDING] = 0
    return differences


def _shares(generator: np.random.Generator, counts: NDArray[Any], samples: int) -> NDArray[np.float64]:
    """How much of each sample every kind makes up: [samples, kinds]."""
    total = int(counts.sum())
    shares: NDArray[np.float64] = generator.multinomial(total, counts / total, size=samples) / total
    return shares


def _correct(predictions: PredictionSet) -> NDArray[np.bool_]:
    correct: NDArray[np.bool_] = predictions.logits.argmax(axis=1) == predictions.known_labels
    return correct


def _label_name(predictions: PredictionSet, row: int) -> str:
    label = predictions.labels[row]
    assert label is not None
    return predictions.class_names(row)[label]

"""Whether a difference could be chance: t-tests over seeds, and a paired bootstrap over seeds and documents."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.predictions import PredictionSet

CONFIDENCE = 0.95
_COUNTS_AT_ONCE = 2**24  # counts that a bootstrap draws at once: 128 MiB
_ROUNDING = 1e-12


@dataclass(frozen=True)
class SeedSummary:
    """A metric over seeds: their number, mean, standard deviation and the 95 % interval of the mean by Student's t.

    The deviation is the sample's, divided by count - 1. With one seed there is neither a deviation nor an interval.
    """

    count: int
    mean: float
    deviation: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class SignificanceTest:
    """What a test of two methods says: the difference of their means, and how probable it is without a real one.

    Where the test is undefined there is no p-value, and `reason` says why. The `interval` of a bootstrap holds 95 %
    of the resampled differences.
    """

    difference: float
    p_value: float | None
    reason: str | None = None
    interval: tuple[float, float] | None = None


def summarise_seeds(values: Sequence[float]) -> SeedSummary:
    """Mean, standard deviation and 95 % t-interval of a metric over seeds.

    >>> summarise_seeds([0.80, 0.82, 0.84]).mean
    0.82
    """
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return SeedSummary(1, mean)
    from scipy import stats  # slow to import, so only when needed

    reach = stats.sem(array) * stats.t.ppf((1 + CONFIDENCE) / 2, len(array) - 1)
    return SeedSummary(len(array), mean, float(array.std(ddof=1)), (float(mean - reach), float(mean + reach)))


def accuracy_interval(correct: int, total: int) -> tuple[float, float]:
    """The 95 % interval of an accuracy, by Wilson's score: what other documents of the same kind would show.

    >>> accuracy_interval(80, 100)
    (0.711, 0.867)
    """
    from scipy import stats

    interval = stats.binomtest(correct, total).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def average_precision_interval(
    scores: NDArray[np.float64], labels: NDArray[np.int64], *, resamples: int = 200, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of the mean average precision of scores [documents, labels], by a bootstrap of documents."""
    from scipy.stats import rankdata

    order = np.argsort(-scores, axis=0)
    hits = np.take_along_axis(labels, order, axis=0)
    # Equal scores share a place: the last one that any of them has.
    place = np.take_along_axis(rankdata(-scores, method="max", axis=0).astype(np.int64) - 1, order, axis=0)
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        # A document that is drawn twice stands twice in the ranking: a weight does the same without sorting again.
        weights = np.bincount(generator.integers(len(labels), size=len(labels)), minlength=len(labels))[order]
        right = (weights * hits).cumsum(axis=0)
        precision = np.take_along_axis(right / np.maximum(weights.cumsum(axis=0), 1), place, axis=0)
        total = right[-1]
        values = (weights * hits * precision).sum(axis=0)[total > 0] / total[total > 0]
        found.append(values.mean() if values.size else 0.0)
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def t_test(
    first: Sequence[float],
    second: Sequence[float],
    alternative: Literal["greater", "two-sided"] = "greater",
) -> SignificanceTest:
    """Student's t-test of two methods' seeds.

    One-sided ("the first is greater") it is the paper's test of prefix-propagation against prefix-tuning on
    Hyperpartisan (Results and Discussion).

    >>> t_test([0.84, 0.82, 0.83], [0.80, 0.79, 0.81]).p_value < 0.05
    True
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    difference = float(one.mean() - other.mean())
    if min(len(one), len(other)) < 2:
        return SignificanceTest(difference, None, "too few seeds: a t-test needs 2 of each")
    if np.ptp(one) == 0 and np.ptp(other) == 0:
        return SignificanceTest(difference, None, "the seeds of neither vary, so t is undefined")
    from scipy import stats

    # scipy warns about nearly equal values; its result is still the best that the numbers allow.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = stats.ttest_ind(one, other, alternative=alternative)
    return SignificanceTest(difference, float(result.pvalue))


def holm_correction(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction of several tests' p-values, in their order; None, an undefined test, stays None.

    >>> holm_correction([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    defined = np.array([p_value for p_value in p_values if p_value is not None], dtype=np.float64)
    order = defined.argsort(kind="stable")
    # A test is never more significant than one with a smaller p-value.
    defined[order] = np.maximum.accumulate(defined[order] * np.arange(len(defined), 0, -1)).clip(max=1)
    corrected = iter(defined.tolist())
    return [None if p_value is None else next(corrected) for p_value in p_values]


def paired_scores(first: PredictionSet, second: PredictionSet) -> tuple[NDArray[Any], NDArray[Any]]:
    """Which documents each of two runs gets right, in the first one's order; with several labels, each one's F1.

    Raises `ValueError` unless both are about the same documents, with the same labels.
    """
    if strange := sorted({*first.ids} ^ {*second.ids}):
        raise ValueError(
            f"The two runs were judged on different documents: {len(first.ids)} and {len(second.ids)} of them, and "
            f"{strange[0]!r} is in one only; compare runs on the same split of the same data."
        )
    rows = {document_id: row for row, document_id in enumerate(second.ids)}
    order = np.array([rows[document_id] for document_id in first.ids], dtype=np.int64)
    labels, other_labels = first.known_labels, second.known_labels[order]
    for row, other in enumerate(order):
        names = _names(first, row), _names(second, int(other))
        if names[0] != names[1]:
            raise ValueError(
                f"Document {first.ids[row]!r} has the label {names[0]!r} in one run and {names[1]!r} in the other; "
                "compare runs on the same data."
            )
    if first.decisions is not None and second.decisions is not None:
        return _f1_of_documents(first.decisions, labels), _f1_of_documents(second.decisions[order], other_labels)
    return first.logits.argmax(axis=1) == labels, second.logits.argmax(axis=1)[order] == other_labels


def _names(predictions: PredictionSet, row: int) -> str:
    names, label = predictions.class_names(row), predictions.labels[row]
    assert label is not None
    return ", ".join(names[one] for one in label) if isinstance(label, tuple) else names[label]


def _f1_of_documents(decisions: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The F1 of every document's labels; 1 for one that has none and gets none."""
    size = decisions.sum(axis=1) + labels.sum(axis=1)
    shares: NDArray[np.float64] = 2 * (decisions * labels).sum(axis=1) / np.maximum(size, 1)
    return np.where(size == 0, 1.0, shares)


def paired_bootstrap(
    first: ArrayLike, second: ArrayLike, *, resamples: int = 20_000, seed: int = 0
) -> SignificanceTest:
    """Resample seeds and documents, and count how often the lead of one method disappears.

    `first` and `second` are [seeds, documents], or [documents] of one run each: one number per document, such as
    whether the run gets it right (then the means are accuracies, and micro-F1s where every document has one label).
    A sample has seeds of each method, and the same documents for both: its spread is what other seeds and other
    documents would change. The two-sided p-value is twice the share of samples in which the method that leads is not
    ahead; the data itself counts as one of them, so that the p-value is never 0.
    """
    one, other = (np.atleast_2d(np.asarray(values, dtype=np.float64)) for values in (first, second))
    differences = _resampled_differences(one, other, resamples, np.random.default_rng(seed))
    behind = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = min(1.0, 2 * (1 + behind) / (1 + resamples))
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return SignificanceTest(float(one.mean() - other.mean()), p_value, interval=(float(low), float(high)))


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

"""One number per seed: its mean and interval, and whether one method is better than another over seeds.

For two runs on the same documents see `prefixprop.evaluate.paired_tests`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class SeedSummary:
    """A measure over seeds; `deviation` and `interval` are None, and `reason` says why, where they are undefined.

    Attributes:
        count: The number of seeds.
        mean: Their mean.
        deviation: The sample's standard deviation (divided by count - 1).
        interval: The 95 % interval of the mean by Student's t.
        reason: Why there is no deviation and no interval.
    """

    count: int
    mean: float
    deviation: float | None
    interval: tuple[float, float] | None
    reason: str | None = None


def summarise_seeds(values: Sequence[float]) -> SeedSummary:
    """Mean, standard deviation and 95 % t-interval of a measure over seeds.

    >>> summarise_seeds([0.80, 0.82, 0.84]).mean
    0.82
    """
    array = seed_values(values)
    mean = float(array.mean())
    if len(array) < 2:
        return SeedSummary(1, mean, None, None, "a deviation needs at least 2 seeds, got 1")
    deviation = float(array.std(ddof=1))
    from scipy import stats  # half a second, which a mistake on the command line need not wait for

    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(array) - 1)) * deviation / len(array) ** 0.5
    return SeedSummary(len(array), mean, deviation, (mean - reach, mean + reach))


def seed_values(values: Sequence[float]) -> NDArray[np.float64]:
    """The values as an array, `ValueError` unless they are at least one finite number."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"Expected one finite number per seed, at least one of them, got {values!r}.")
    return array


Alternative = Literal["greater", "two-sided"]
ALTERNATIVES: tuple[Alternative, ...] = ("greater", "two-sided")
FEWEST_SEEDS = 2


@dataclass(frozen=True)
class SignificanceTest:
    """What a test of two sets of numbers says.

    Attributes:
        name: The test.
        difference: The mean of the first minus the mean of the second.
        p_value: How probable a difference such as this is without a real one; None where the test is undefined.
        reason: Why there is no p-value.
    """

    name: str
    difference: float
    p_value: float | None
    reason: str | None = None


def t_test(first: Sequence[float], second: Sequence[float], alternative: Alternative = "greater") -> SignificanceTest:
    """Student's t-test of two methods' seeds, which assumes equal variances.

    One-tailed ("the first is greater") it is the paper's test of prefix-propagation against prefix-tuning on
    Hyperpartisan (Results and Discussion).

    >>> t_test([0.84, 0.82, 0.83], [0.80, 0.79, 0.81]).p_value < 0.05
    True
    """
    return _seeds_test("Student's t-test", first, second, alternative, equal_variances=True)


def welch_test(
    first: Sequence[float], second: Sequence[float], alternative: Alternative = "greater"
) -> SignificanceTest:
    """Welch's t-test of two methods' seeds, each with a variance of its own."""
    return _seeds_test("Welch's t-test", first, second, alternative, equal_variances=False)


def holm_correction(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction of several tests' p-values, in their order; None, an undefined test, stays None.

    >>> holm_correction([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    defined = sorted((p_value, index) for index, p_value in enumerate(p_values) if p_value is not None)
    for p_value, _ in defined:
        if not 0 <= p_value <= 1:
            raise ValueError(f"A p-value lies between 0 and 1, got {p_value!r}.")
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p_value, index) in enumerate(defined):
        # A test is never more significant than one with a smaller p-value.
        largest = max(largest, min(1.0, (len(defined) - rank) * p_value))
        corrected[index] = largest
    return corrected


def check_alternative(alternative: str) -> None:
    """Raise `ValueError` unless it is one of `ALTERNATIVES`."""
    if alternative not in ALTERNATIVES:
        raise ValueError(f"Unknown alternative {alternative!r}; choose one of {', '.join(ALTERNATIVES)}.")


def _seeds_test(
    name: str, first: Sequence[float], second: Sequence[float], alternative: Alternative, equal_variances: bool
) -> SignificanceTest:
    check_alternative(alternative)
    one, other = seed_values(first), seed_values(second)
    difference = float(one.mean() - other.mean())
    if min(len(one), len(other)) < FEWEST_SEEDS:
        reason = f"too few seeds: a t-test needs {FEWEST_SEEDS} of each"
        return SignificanceTest(name, difference, None, reason)
    if np.ptp(one) == 0 and np.ptp(other) == 0:
        return SignificanceTest(name, difference, None, "the seeds of neither vary, so t is undefined")
    # scipy warns about nearly equal values; its result is still the best that the numbers allow.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        from scipy import stats

        p_value = float(stats.ttest_ind(one, other, equal_var=equal_variances, alternative=alternative).pvalue)
    return SignificanceTest(name, difference, p_value)

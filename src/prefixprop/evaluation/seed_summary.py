"""One number per seed, summed up: mean, standard deviation and 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

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
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(array) - 1)) * deviation / len(array) ** 0.5
    return SeedSummary(len(array), mean, deviation, (mean - reach, mean + reach))


def seed_values(values: Sequence[float]) -> NDArray[np.float64]:
    """The values as an array, `ValueError` unless they are at least one finite number."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"Expected one finite number per seed, at least one of them, got {values!r}.")
    return array

"""Summaries over seeds, t-tests and Holm's correction: against scipy, by hand, and as properties."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from prefixprop.evaluate import holm_correction, summarise_seeds, t_test, welch_test

PROPAGATION, TUNING = [0.84, 0.80, 0.86, 0.82, 0.83], [0.78, 0.81, 0.76, 0.80, 0.75]
SEEDS = st.lists(st.integers(0, 1000).map(lambda number: number / 1000), min_size=2, max_size=8)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_summary_by_hand() -> None:
    summary = summarise_seeds([1.0, 2.0, 3.0])
    # t of 2 degrees of freedom at 97.5 % is 4.30265.
    reach = 4.30265 / math.sqrt(3)
    assert (summary.count, summary.mean, summary.deviation) == (3, 2.0, 1.0)
    assert summary.interval == pytest.approx((2 - reach, 2 + reach), abs=1e-5)
    assert summary.reason is None


@given(SEEDS)
def test_interval_is_scipys(values: list[float]) -> None:
    assume(len(set(values)) > 1)
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert summarise_seeds(values).interval == pytest.approx(expected)


def test_one_seed_has_no_interval() -> None:
    summary = summarise_seeds([0.8])
    assert summary.mean == 0.8 and summary.deviation is None and summary.interval is None
    assert summary.reason == "a deviation needs at least 2 seeds, got 1"


@pytest.mark.parametrize("values", [[], [0.8, float("nan")], [[0.8], [0.9]]])
def test_what_is_no_seeds(values: list[float]) -> None:
    with pytest.raises(ValueError, match="one finite number per seed"):
        summarise_seeds(values)


def test_students_t_by_hand() -> None:
    # Means 3 and 2, both variances 1, pooled 1: t = 1 / sqrt(2/3) = 1.2247 with 4 degrees of freedom.
    result = t_test([2, 3, 4], [1, 2, 3])
    assert result.difference == 1.0
    assert result.p_value == pytest.approx(stats.t.sf(math.sqrt(1.5), 4))
    assert result.p_value == pytest.approx(0.14394, abs=1e-5)


def test_welch_differs_where_the_variances_do() -> None:
    steady, wild = [0.80, 0.81, 0.80], [0.6, 0.9, 0.7, 0.5, 0.95]
    expected = stats.ttest_ind(steady, wild, equal_var=False, alternative="greater").pvalue
    assert welch_test(steady, wild).p_value == pytest.approx(expected)
    assert t_test(steady, wild).p_value != pytest.approx(expected, abs=1e-3)


def test_the_papers_test_is_one_tailed() -> None:
    one_tailed, two_sided = t_test(PROPAGATION, TUNING), t_test(PROPAGATION, TUNING, "two-sided")
    assert one_tailed.p_value is not None and two_sided.p_value is not None
    assert one_tailed.p_value < 0.05 and two_sided.p_value == pytest.approx(2 * one_tailed.p_value)


@pytest.mark.parametrize("test", [t_test, welch_test])
@given(first=SEEDS, second=SEEDS)
def test_p_values_mirror_each_other(test: Any, first: list[float], second: list[float]) -> None:
    assume(len(set(first)) > 1 and len(set(second)) > 1)
    ahead, behind = test(first, second), test(second, first)
    assert 0 <= ahead.p_value <= 1 and ahead.p_value + behind.p_value == pytest.approx(1)
    assert ahead.difference == pytest.approx(-behind.difference)
    assert test(first, second, "two-sided").p_value == pytest.approx(test(second, first, "two-sided").p_value)


@pytest.mark.parametrize("test", [t_test, welch_test])
def test_too_few_seeds_have_a_reason_and_no_p_value(test: Any) -> None:
    result = test([0.9], TUNING)
    assert result.p_value is None and result.difference == pytest.approx(0.12)
    assert result.reason == "too few seeds: a t-test needs 2 of each"
    constant = test([0.1, 0.1, 0.1], [0.2, 0.2, 0.2])
    assert constant.p_value is None and constant.reason is not None and "t is undefined" in constant.reason


def test_unknown_alternative() -> None:
    with pytest.raises(ValueError, match="'less'; choose one of greater, two-sided"):
        t_test(PROPAGATION, TUNING, "less")


def test_holm_by_hand() -> None:
    assert holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_correction([]) == [] and holm_correction([None]) == [None]
    # A test without a p-value is not counted.
    assert holm_correction([0.01, None, 0.02]) == [0.02, None, 0.02]
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        holm_correction([0.5, 1.5])


@given(P_VALUES)
def test_holm_keeps_the_order_and_never_lowers(p_values: list[float]) -> None:
    corrected = holm_correction(p_values)
    assert all(p <= new <= min(1, p * len(p_values)) for p, new in zip(p_values, corrected, strict=True))
    by_size = [corrected[index] for index in np.argsort(p_values, kind="stable")]
    assert all(smaller <= larger for smaller, larger in pairwise(by_size))


@given(P_VALUES, st.randoms())
def test_holm_does_not_hang_on_the_order(p_values: list[float], generator) -> None:
    indices = list(range(len(p_values)))
    generator.shuffle(indices)
    corrected = holm_correction(p_values)
    assert holm_correction([p_values[index] for index in indices]) == [corrected[index] for index in indices]

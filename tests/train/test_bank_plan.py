"""How many readers documents of a length allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixprop.train.readers import LEARNING_RATES, PLANS, ROWS_PER_TOKEN, BankPlan, plan_bank

tokens = st.floats(0, 20_000)
groups = st.integers(1, 6)
lengths = st.none() | st.integers(1, 16)
rates = st.none() | st.floats(1e-5, 1.0)


@given(tokens, groups, lengths, rates)
def test_rows_are_few_beside_the_text(mean: float, groups: int, length: int | None, rate: float | None) -> None:
    plan = plan_bank(mean, groups, length, rate)
    smallest = plan_bank(0, groups, length, rate)
    assert plan == smallest or plan.rows(groups) <= mean * ROWS_PER_TOKEN
    assert smallest.rows(groups) == groups * (length or 1)
    assert plan.length == length or length is None
    assert plan.learning_rates == (rate,) or rate is None
    assert len(set(plan.learning_rates)) == len(plan.learning_rates) and plan.seeds >= 1


@given(tokens, st.floats(0, 20_000), groups, lengths, rates)
def test_more_tokens_never_mean_fewer_rows(
    mean: float, more: float, groups: int, length: int | None, rate: float | None
) -> None:
    fewer, larger = (plan_bank(count, groups, length, rate) for count in (mean, mean + more))
    assert fewer.rows(groups) <= larger.rows(groups)
    assert fewer.seeds <= larger.seeds and len(fewer.learning_rates) <= len(larger.learning_rates)


@pytest.mark.parametrize(
    ("mean", "groups", "expected"),
    [(30, 6, PLANS[0]), (16 * 6 * 2, 6, PLANS[1]), (16 * 6 * 2 - 1, 6, PLANS[0]), (4096, 6, PLANS[-1])],
)
def test_the_largest_plan_that_fits(mean: float, groups: int, expected: BankPlan) -> None:
    assert plan_bank(mean, groups) == expected


def test_a_third_learning_rate_is_trained_for_half_of_the_time() -> None:
    assert BankPlan(2, LEARNING_RATES, 4).rows(6) == 2 * 4 * 6 * 2.5
    assert BankPlan(2, LEARNING_RATES[:2], 4).rows(6) == 2 * 4 * 6 * 2

"""Summaries, t-tests, Holm's correction and the paired bootstrap: against scipy, by hand, and as properties."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from prefixprop.evaluate import (
    PredictionSet,
    SeedSummary,
    accuracy_interval,
    holm_correction,
    paired_bootstrap,
    paired_scores,
    summarise_seeds,
    t_test,
)

PROPAGATION, TUNING = [0.84, 0.80, 0.86, 0.82, 0.83], [0.78, 0.81, 0.76, 0.80, 0.75]
SEEDS = st.lists(st.integers(0, 1000).map(lambda number: number / 1000), min_size=2, max_size=8)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60)


@given(SEEDS)
def test_interval_is_scipys(values: list[float]) -> None:
    assume(len(set(values)) > 1)
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    summary = summarise_seeds(values)
    assert summary.interval == pytest.approx(expected)
    found = summary.count, summary.mean, summary.deviation
    assert found == pytest.approx((len(values), np.mean(values), np.std(values, ddof=1)))
    assert summarise_seeds([0.8]) == SeedSummary(1, 0.8, None, None)


def test_t_tests_are_scipys_and_too_few_seeds_have_a_reason_and_no_p_value() -> None:
    for alternative in ("greater", "two-sided"):
        expected = stats.ttest_ind(PROPAGATION, TUNING, alternative=alternative).pvalue
        assert t_test(PROPAGATION, TUNING, alternative).p_value == pytest.approx(expected)
    result = t_test([0.9], TUNING)
    assert result.p_value is None and result.difference == pytest.approx(0.12)
    assert result.reason == "too few seeds: a t-test needs 2 of each"
    constant = t_test([0.1, 0.1, 0.1], [0.2, 0.2, 0.2])
    assert constant.p_value is None and constant.reason is not None and "t is undefined" in constant.reason


def test_holm_by_hand() -> None:
    assert holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_correction([]) == [] and holm_correction([None]) == [None]
    # A test without a p-value is not counted.
    assert holm_correction([0.01, None, 0.02]) == [0.02, None, 0.02]


@given(P_VALUES)
def test_holm_keeps_the_order_and_never_lowers(p_values: list[float]) -> None:
    corrected = holm_correction(p_values)
    assert all(p <= new <= min(1, p * len(p_values)) for p, new in zip(p_values, corrected, strict=True))
    by_size = [corrected[index] for index in np.argsort(p_values, kind="stable")]
    assert all(smaller <= larger for smaller, larger in pairwise(by_size))


# --- paired bootstrap -----------------------------------------------------------------------------------------------


def test_bootstrap_is_scipys() -> None:
    generator = np.random.default_rng(3)
    first, second = generator.random(200) < 0.75, generator.random(200) < 0.7
    ours = paired_bootstrap(first, second, resamples=20_000)
    theirs = stats.bootstrap(
        (first.astype(float) - second,), np.mean, n_resamples=20_000, method="percentile", rng=generator
    )
    assert ours.interval == pytest.approx(tuple(theirs.confidence_interval), abs=0.006)
    share = (theirs.bootstrap_distribution <= 0).mean()
    assert ours.p_value == pytest.approx(2 * share, abs=0.02) and 0.001 < share < 0.5
    assert ours.difference == pytest.approx(first.mean() - second.mean())


def test_bootstrap_of_seeds_and_documents() -> None:
    nothing = np.zeros((2, 10))
    one_document = np.concatenate([np.ones((2, 1)), np.zeros((2, 9))], axis=1)
    one_seed = np.concatenate([np.ones((1, 10)), np.zeros((1, 10))])
    # Not ahead where the one document, or the one seed, is not drawn.
    assert paired_bootstrap(one_document, nothing).p_value == pytest.approx(2 * 0.9**10, abs=0.02)
    assert paired_bootstrap(one_seed, nothing).p_value == pytest.approx(2 * 0.5**2, abs=0.02)
    assert paired_bootstrap(nothing, one_seed).p_value == pytest.approx(2 * 0.5**2, abs=0.02)
    assert paired_bootstrap(np.ones((2, 10)), nothing).p_value == pytest.approx(2 / 20_001)  # never 0
    same = paired_bootstrap([1, 0, 1], [1, 0, 1], resamples=100)
    assert same.p_value == 1 and same.interval == (0, 0)
    # Seeds that differ widen the interval of the same means.
    alike = np.tile(one_seed.mean(axis=0) > np.arange(10) / 10, (2, 1))
    assert alike.mean() == one_seed.mean()
    assert paired_bootstrap(one_seed, nothing).interval == (0, 1)
    low, high = paired_bootstrap(alike, nothing).interval  # type: ignore[misc]
    assert 0.1 < low < high < 0.9


def test_bootstrap_is_seeded_and_in_parts_of_the_same_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = np.random.default_rng(5).random((2, 3, 50)) < np.array([0.7, 0.6])[:, None, None]
    whole, again, other = (paired_bootstrap(first, second, seed=seed) for seed in (1, 1, 2))
    assert whole == again != other
    monkeypatch.setattr("prefixprop.evaluate.significance._COUNTS_AT_ONCE", 1000)
    parts = paired_bootstrap(first, second, seed=1)
    assert parts.p_value == pytest.approx(whole.p_value, abs=0.02)
    assert parts.interval == pytest.approx(whole.interval, abs=0.02)


def predictions(ids: str, labels: str, predicted: str) -> PredictionSet:
    logits = np.array([[float(name == guess) for name in "xyz"] for guess in predicted])
    return PredictionSet(tuple(ids), tuple("xyz".index(label) for label in labels), logits, label_names=tuple("xyz"))


def test_scores_are_paired_by_id() -> None:
    first, second = predictions("abcd", "xyzx", "xyxx"), predictions("dcba", "xzyx", "yzyx")
    one, other = paired_scores(first, second)
    assert one.tolist() == [True, True, False, True]
    assert other.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        (("ab", "xy", "xy"), "different documents: 3 and 2 of them, and 'c' is in one only"),
        (("abcd", "xyzz", "xyzz"), "'d' is in one only"),
        (("abc", "xzz", "xyz"), "Document 'b' has the label 'y' in one run and 'z' in the other"),
    ],
)
def test_runs_on_different_documents(second: tuple[str, str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        paired_scores(predictions("abc", "xyz", "xyz"), predictions(*second))


def test_the_interval_of_an_accuracy_is_wilsons() -> None:
    assert accuracy_interval(80, 100) == pytest.approx((0.71117, 0.86663), abs=1e-5)

"""Two runs on the same documents: paired bootstrap and McNemar's test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prefixprop.evaluate import PredictionSet, mcnemar_test, paired_bootstrap, paired_scores

PAIRS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60)


def columns(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [one for one, _ in pairs], [other for _, other in pairs]


def outcomes(only_first: int, only_second: int, both: int = 5) -> tuple[list[int], list[int]]:
    return columns([(1, 0)] * only_first + [(0, 1)] * only_second + [(1, 1)] * both)


def test_mcnemar_by_hand() -> None:
    result = mcnemar_test(*outcomes(5, 1))
    # Of 6 fair coins: (C(6,0) + C(6,1) + C(6,5) + C(6,6)) / 64.
    assert result.p_value == pytest.approx(14 / 64)
    assert (result.only_first, result.only_second) == (5, 1) and result.difference == pytest.approx(4 / 11)
    assert mcnemar_test(*outcomes(5, 1), alternative="greater").p_value == pytest.approx(7 / 64)
    assert mcnemar_test(*outcomes(0, 0)).p_value == 1.0


def test_mcnemar_of_many_nears_chi_squared() -> None:
    result = mcnemar_test(*outcomes(1100, 1000))
    assert result.p_value == pytest.approx(stats.chi2.sf((100 - 1) ** 2 / 2100, 1), abs=1e-3)


@given(PAIRS)
def test_mcnemar_is_symmetric(pairs: list[tuple[int, int]]) -> None:
    first, second = columns(pairs)
    forth, back = mcnemar_test(first, second), mcnemar_test(second, first)
    assert forth.p_value is not None and 0 <= forth.p_value <= 1 and forth.p_value == pytest.approx(back.p_value)


def test_mcnemar_takes_right_or_wrong() -> None:
    with pytest.raises(ValueError, match=r"right \(1\) or wrong \(0\)"):
        mcnemar_test([0.5, 1], [0, 1])


def test_bootstrap_is_scipys() -> None:
    generator = np.random.default_rng(3)
    first, second = generator.random(200) < 0.75, generator.random(200) < 0.7
    ours = paired_bootstrap(first, second, resamples=20_000)
    theirs = stats.bootstrap(
        (first.astype(float) - second,), np.mean, n_resamples=20_000, method="percentile", rng=generator
    )
    assert ours.interval == pytest.approx(tuple(theirs.confidence_interval), abs=0.006)
    share = (theirs.bootstrap_distribution <= 0).mean()
    assert ours.p_value == pytest.approx(share, abs=0.01) and 0.001 < share < 0.5
    assert ours.difference == pytest.approx(first.mean() - second.mean())


def test_bootstrap_of_other_measures_than_right_or_wrong() -> None:
    generator = np.random.default_rng(4)
    losses = generator.random((2, 300))
    ours = paired_bootstrap(*losses, resamples=20_001)
    spread = (losses[0] - losses[1]).std() / 300**0.5
    expected = ours.difference - 1.96 * spread, ours.difference + 1.96 * spread
    assert ours.interval == pytest.approx(expected, abs=0.05 * spread * 2)


def test_bootstrap_is_seeded() -> None:
    first, second = outcomes(30, 20)
    runs = [paired_bootstrap(first, second, resamples=500, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@given(PAIRS)
def test_bootstrap_p_values(pairs: list[tuple[int, int]]) -> None:
    first, second = columns(pairs)
    ahead, behind = (paired_bootstrap(*both, resamples=200) for both in ((first, second), (second, first)))
    assert ahead.p_value is not None and behind.p_value is not None
    assert 0 < ahead.p_value <= 1 and 0 < behind.p_value <= 1
    # Ties count on both sides.
    assert ahead.p_value + behind.p_value >= 1 - 0.2
    assert ahead.interval[0] <= ahead.interval[1]
    two_sided = paired_bootstrap(first, second, "two-sided", resamples=200).p_value
    assert two_sided is not None and 0 < two_sided <= 1


def test_equal_runs_do_not_differ() -> None:
    same = paired_bootstrap([1, 0, 1], [1, 0, 1], resamples=100)
    assert same.p_value == 1.0 and same.interval == (0.0, 0.0)


def test_bootstrap_of_seeds_and_documents() -> None:
    nothing = np.zeros((2, 10))
    one_document = np.concatenate([np.ones((2, 1)), np.zeros((2, 9))], axis=1)
    one_seed = np.concatenate([np.ones((1, 10)), np.zeros((1, 10))])
    # Not ahead where the one document, or the one seed, is not drawn.
    assert paired_bootstrap(one_document, nothing).p_value == pytest.approx(0.9**10, abs=0.01)
    assert paired_bootstrap(one_seed, nothing).p_value == pytest.approx(0.5**2, abs=0.01)
    assert paired_bootstrap(nothing, one_seed).p_value == 1
    assert paired_bootstrap(np.ones((2, 10)), nothing).p_value < 0.001  # type: ignore[operator]
    # Seeds that differ widen the interval of the same means.
    alike = np.tile(one_seed.mean(axis=0) > np.arange(10) / 10, (2, 1))
    assert alike.mean() == one_seed.mean()
    assert paired_bootstrap(one_seed, nothing).interval == (0, 1)
    low, high = paired_bootstrap(alike, nothing).interval
    assert 0.1 < low < high < 0.9


def test_bootstrap_in_parts_is_of_the_same_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = np.random.default_rng(5).random((2, 3, 50)) < np.array([0.7, 0.6])[:, None, None]
    whole = paired_bootstrap(first, second)
    monkeypatch.setattr("prefixprop.evaluate.paired_tests._COUNTS_AT_ONCE", 1000)
    parts = paired_bootstrap(first, second)
    assert parts.p_value == pytest.approx(whole.p_value, abs=0.02)
    assert parts.interval == pytest.approx(whole.interval, abs=0.02)


@pytest.mark.parametrize(("first", "second"), [([1, 0], [1]), ([], []), ([[[1]]], [[[0]]])])
def test_what_is_not_paired(first: list[int], second: list[int]) -> None:
    with pytest.raises(ValueError, match="one number per document"):
        mcnemar_test([first], [second])  # one run each, no seeds
    for test in (paired_bootstrap, mcnemar_test):
        with pytest.raises(ValueError, match="one number per document"):
            test(first, second)


def predictions(ids: str, labels: str, predicted: str) -> PredictionSet:
    logits = np.array([[float(name == guess) for name in "xyz"] for guess in predicted])
    return PredictionSet(tuple(ids), tuple("xyz".index(label) for label in labels), logits, label_names=tuple("xyz"))


def test_scores_are_paired_by_id() -> None:
    first, second = predictions("abcd", "xyzx", "xyxx"), predictions("dcba", "xzyx", "yzyx")
    one, other = paired_scores(first, second)
    assert one.tolist() == [True, True, False, True]
    assert other.tolist() == [True, True, True, False]


def test_runs_on_different_documents() -> None:
    first = predictions("abc", "xyz", "xyz")
    with pytest.raises(ValueError, match=r"different documents: 3 and 2 of them, and 'c' is in one only"):
        paired_scores(first, predictions("ab", "xy", "xy"))
    with pytest.raises(ValueError, match="'d' is in one only"):
        paired_scores(first, predictions("abcd", "xyzz", "xyzz"))
    with pytest.raises(ValueError, match="Document 'b' has the label 'y' in one run and 'z' in the other"):
        paired_scores(first, predictions("abc", "xzz", "xyz"))

"""The benchmark of the methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prefixprop.benchmarking.encoders import EncoderSize
from prefixprop.benchmarking.figures import plot_runtime
from prefixprop.benchmarking.runtime import HUGGING_FACE, RuntimeResult, bench_runtime, relative_time, runtime_runs
from prefixprop.benchmarking.timing import Timing

TINY = EncoderSize(hidden=32, layers=2, heads=2, window=8)


@pytest.mark.parametrize("train", [False, True])
def test_methods_beside_no_peft(train: bool) -> None:
    results = bench_runtime(runtime_runs(TINY, 2, 24, prefix=3, train=train, with_hugging_face=True), repeats=3)
    assert [result.method for result in results] == ["no PEFT", "prefix-tuning", "prefix-propagation", HUGGING_FACE]
    assert all(len(result.timing.seconds) == 3 for result in results)
    assert (results[0].relative, results[0].low, results[0].high) == (1.0, 1.0, 1.0)
    for result in results[1:]:
        assert result.relative == result.timing.median / results[0].timing.median
        assert result.low is not None and result.high is not None and result.low <= result.relative <= result.high


def test_interval_covers_the_ratio_and_shrinks_with_more_rounds() -> None:
    generator = np.random.default_rng(1)

    def width(rounds: int) -> float:
        base = 1 + 0.02 * generator.standard_normal(rounds)
        other = 1.05 * (1 + 0.02 * generator.standard_normal(rounds))
        ratio, low, high = relative_time(Timing(tuple(other), None), Timing(tuple(base), None))
        assert ratio is not None and low is not None and high is not None
        assert low < 1.05 < high and low <= ratio <= high
        return high - low

    assert width(400) < 0.5 * width(20)


def test_rounds_are_compared_as_pairs() -> None:
    """A drift that meets both leaves their ratio certain."""
    drift = np.linspace(1, 2, 51)
    ratio, low, high = relative_time(Timing(tuple(1.1 * drift), None), Timing(tuple(drift), None))
    assert ratio == low == high == pytest.approx(1.1)


def test_no_ratio_without_memory() -> None:
    assert relative_time(Timing((), None), Timing((1.0,), None)) == (None, None, None)


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = [
        RuntimeResult("no PEFT", Timing((1.0,), None), 1.0, 1.0, 1.0),
        RuntimeResult("prefix-tuning", Timing((1.02,), None), 1.02, 1.01, 1.03),
        RuntimeResult("prefix-propagation", Timing((), None), None, None, None),
        RuntimeResult(HUGGING_FACE, Timing((12.0,), None), 12.0, 11.0, 13.0),
    ]
    figure = plot_runtime(results, tmp_path / "methods.svg")
    assert (tmp_path / "methods.svg").read_text().startswith("<?xml")
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["no PEFT", "prefix-tuning", "prefix-propagation"]
    assert figure.axes[0].get_xlim()[1] < 10
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any("95 %" in text for text in legend) and any("paper" in text for text in legend)
    without = plot_runtime(results, show_paper=False)
    assert not any("paper" in text.get_text() for text in without.legends[0].get_texts())

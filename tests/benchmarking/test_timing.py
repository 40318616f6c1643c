"""How run times are measured."""

from __future__ import annotations

import time

import pytest
import torch

from prefixprop.benchmarking.timing import WARM_UP, Timing, measure, measure_in_turns


def test_takes_turns_and_leaves_out_the_warm_up() -> None:
    order: list[str] = []
    timings = measure_in_turns({name: lambda name=name: order.append(name) for name in "abc"}, "cpu", repeats=4)
    assert "".join(order) == ("abcbcacab" * 2)[: 3 * (WARM_UP + 4)]
    assert [len(timing.seconds) for timing in timings.values()] == [4, 4, 4]
    assert all(timing.peak_gib is None for timing in timings.values())  # a CPU does not count


def test_seconds_and_their_median() -> None:
    pauses = iter([0.0, 0.0, 0.05, 0.01, 0.02])
    timing = measure(lambda: time.sleep(next(pauses)), "cpu", repeats=3)
    assert timing.median == sorted(timing.seconds)[1]
    assert timing.median >= 0.02 and timing.seconds[0] >= 0.05


def test_a_measurement_of_several_calls_is_their_mean() -> None:
    calls: list[int] = []
    timings = measure_in_turns({"run": lambda: (calls.append(1), time.sleep(0.01))}, "cpu", 2, warm_up=1, calls=4)
    assert len(calls) == 12
    assert all(0.01 <= seconds < 0.04 for seconds in timings["run"].seconds)


def test_what_runs_out_of_memory_is_left_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def greedy() -> None:
        nonlocal calls
        calls += 1
        raise torch.OutOfMemoryError("too much")

    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    timings = measure_in_turns({"greedy": greedy, "modest": lambda: None}, "cpu", repeats=3)
    assert timings["greedy"] == Timing((), None) and timings["greedy"].out_of_memory
    assert len(timings["modest"].seconds) == 3 and not timings["modest"].out_of_memory
    assert calls == 1 and emptied == [True]


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, "cpu", repeats=1)

"""Streams in windows of a few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from prefixprop.predict import windows as windows_module
from prefixprop.predict.windows import ReadAhead, windows


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass on the clock of `windows`."""
    now = [0.0]
    monkeypatch.setattr(windows_module, "perf_counter", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def sizes(items: list[str], passes: Callable[[float], None], seconds_of: Callable[[str], float]) -> list[int]:
    """How many items are in every window if each takes so long."""
    found, given = [], []
    for window in windows(items, text_of=str):
        found.append(len(window))
        given += window
        passes(sum(map(seconds_of, window)))
    assert given == items
    return found


def test_windows_grow_to_two_seconds(passes: Callable[[float], None]) -> None:
    assert sizes(["text"] * 50, passes, lambda _: 0.125) == [1, 2, 4, 8, 16, 16, 3]


def test_a_document_that_takes_longer_is_given_by_itself(passes: Callable[[float], None]) -> None:
    assert sizes(["text"] * 4, passes, lambda _: 7.0) == [1, 1, 1, 1]


def test_fast_windows_are_of_bounded_size(passes: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "MOST_DOCUMENTS", 8)
    assert sizes(["text"] * 30, passes, lambda _: 0.0) == [1, 2, 4, 8, 8, 7]
    monkeypatch.setattr(windows_module, "MOST_CHARACTERS", 15)
    assert sizes(["text"] * 14, passes, lambda _: 0.0) == [1, 2, 4, 4, 3]


def test_long_documents_behind_short_ones_make_windows_shorter(passes: Callable[[float], None]) -> None:
    items = ["a" * 10] * 255 + ["a" * 1000] * 40
    found = sizes(items, passes, lambda text: len(text) / 1000)
    assert found[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert max(found[8:]) <= 2  # of one second each; counted in documents it would be 200


def test_a_slow_source_does_not_hold_documents_back(passes: Callable[[float], None]) -> None:
    def slow() -> Iterator[str]:
        for number in range(12):
            passes(0.0 if number < 7 else 1.0)
            yield str(number)

    assert [len(window) for window in windows(slow(), text_of=str)] == [1, 2, 4, 2, 2, 1]


def test_what_came_before_a_fault_is_given() -> None:
    def broken() -> Iterator[str]:
        yield from "ab"
        raise ValueError("line 3 is broken")

    found = windows(broken(), text_of=str)
    assert [next(found), next(found)] == [["a"], ["b"]]
    with pytest.raises(ValueError, match="line 3 is broken"):
        next(found)


def test_what_has_arrived_is_given_while_more_is_waited_for() -> None:
    more = threading.Event()

    def slow() -> Iterator[str]:
        yield from "abcde"
        assert more.wait(60)
        yield "f"
        raise ValueError("line 7 is broken")

    found = windows(ReadAhead(slow()), text_of=str)
    arrived: list[str] = []
    while len(arrived) < 5:  # would wait for ever if a window had to be full
        arrived += next(found)
    assert arrived == list("abcde")
    more.set()
    assert next(found) == ["f"]
    with pytest.raises(ValueError, match="line 7 is broken"):
        next(found)


def test_reading_ahead_keeps_order_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "_READ_AHEAD", 3)
    numbers = ReadAhead(iter(range(100)))
    assert list(numbers) == list(range(100))
    assert list(numbers) == []


def test_reading_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "_READ_AHEAD", 3)
    taken: list[int] = []
    reading = ReadAhead(number for number in range(100) if taken.append(number) is None)
    assert next(reading) == 0
    time.sleep(0.1)
    assert len(taken) <= 5  # one given, three waiting, one in the thread's hand
    assert list(reading) == list(range(1, 100))

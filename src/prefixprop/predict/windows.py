"""Cutting a stream into windows: short enough that answers come every few seconds, long enough to be batched well."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Generic, TypeVar

SECONDS = 2.0  # that a window should take
MOST_DOCUMENTS = 512
MOST_CHARACTERS = 8_000_000  # a few very long documents fill a window too
_READ_AHEAD = 256

Item = TypeVar("Item")


class ReadAhead(Generic[Item]):
    """Items that a thread reads ahead, so that the caller can use those that have arrived while it waits for more."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._arrived: queue.Queue[Item | Exception] = queue.Queue(_READ_AHEAD)
        threading.Thread(target=self._read, args=(items,), daemon=True).start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        item = self._arrived.get()
        if isinstance(item, Exception):
            self._arrived.put(item)  # the next call raises it again
            raise item
        return item

    def is_waiting(self) -> bool:
        """Whether the next item has not arrived yet."""
        return self._arrived.empty()

    def _read(self, items: Iterator[Item]) -> None:
        while True:
            try:
                self._arrived.put(next(items))
            except Exception as error:  # the end too, which is a StopIteration
                self._arrived.put(error)
                return


def windows(items: Iterable[Item], text_of: Callable[[Item], str]) -> Iterator[list[Item]]:
    """Consecutive items in lists that should take the caller about `SECONDS` each.

    The first has one item. After it, the time that the caller took for the last window says how many items and
    characters fit, up to twice as many as before. A window that is slow to fill is yielded early, and one from a
    `ReadAhead` as soon as it would have to wait for the next item. If `items` raises, the items before it are yielded
    first.
    """
    is_waiting = items.is_waiting if isinstance(items, ReadAhead) else lambda: False
    iterator = iter(items)
    most_items, most_characters = 1, MOST_CHARACTERS
    end: Exception | None = None
    while end is None:
        window: list[Item] = []
        characters, started = 0, perf_counter()
        try:
            while not window or (
                len(window) < most_items
                and characters < most_characters
                and perf_counter() - started < SECONDS
                and not is_waiting()
            ):
                window.append(next(iterator))
                characters += len(text_of(window[-1]))
        except Exception as error:  # the end too, which is a StopIteration
            end = error
        if window:
            given = perf_counter()
            yield window
            growth = min(2.0, SECONDS / max(perf_counter() - given, 1e-6))
            most_items = min(MOST_DOCUMENTS, int(len(window) * growth))
            most_characters = min(MOST_CHARACTERS, int(characters * growth))
    if not isinstance(end, StopIteration):
        raise end

"""How many processes train together, and the signals that ask them to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def process_count() -> int:
    """How many processes train together, as set by `accelerate launch` and `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the one process that writes files and prints."""
    return os.environ.get("RANK", "0") == "0"


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "Stopping, with a checkpoint of every run that is under way. Press Ctrl-C again to stop at once."
SECONDS_TO_STOP = 60  # in which a run ends its step and writes a checkpoint


@contextmanager
def handling_signals(handler: Callable[..., None], signals: Sequence[signal.Signals] = _SIGNALS) -> Iterator[None]:
    """Let signals call `handler` meanwhile, except ignored ones; outside the main thread this does nothing."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler) or signal.SIG_DFL
    try:
        yield
    finally:
        for changed, previous in before.items():
            signal.signal(changed, previous)


def interrupt(*_: Any) -> None:
    """A handler for signals that should act like Ctrl-C."""
    raise KeyboardInterrupt

"""This process among others: how many train together, and the signals that ask it to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def process_count() -> int:
    """How many processes train together, as `accelerate launch` and `torchrun` tell."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process is the one that writes and speaks."""
    return os.environ.get("RANK", "0") == "0"


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "Stopping, with a checkpoint of every run that is under way. Once more, and it stops at once."
SECONDS_TO_STOP = 60  # in which a run ends its step and writes a checkpoint


@contextmanager
def asked_by_signals(ask: Callable[..., None], signals: Sequence[signal.Signals] = _SIGNALS) -> Iterator[None]:
    """Let signals call `ask` meanwhile; those that are ignored stay so. Threads other than the main one get none."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, ask) or signal.SIG_DFL
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


def interrupt(*_: Any) -> None:
    """The handler of a signal that means what Ctrl-C means."""
    raise KeyboardInterrupt

"""Long computations: notes, stages and bars, which process shows them, signals to stop, and the garbage collector."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "Stopping, with a checkpoint of every run that is under way. Press Ctrl-C again to stop at once."
SECONDS_TO_STOP = 60  # in which a run ends its step and writes a checkpoint


class Progress:
    """Receives the messages of a run. This one turns notes into warnings and shows nothing else.

    The command line passes one that draws bars, see `prefixprop.cli.messages`.
    """

    def note(self, text: str) -> None:
        """Something that the user should know; the warning points to the line that called the package."""
        frame: FrameType | None = sys._getframe()
        depth, level = 0, 1
        while frame is not None:
            depth += 1
            if str(frame.f_globals.get("__name__")).startswith("prefixprop."):
                level = depth + 1
            frame = frame.f_back
        warnings.warn(text, stacklevel=level)

    def stage(self, what: str) -> None:
        """What is being done from now on; it is not known how long it takes."""

    def advance(self, what: str, done: int, total: int | None, detail: str = "") -> None:
        """How much of something countable is done, and a few words on how it goes; `total` may be unknown."""

    def line(self, text: str) -> None:
        """A result on the way, such as the metrics of an epoch."""


class PrintedProgress(Progress):
    """Prints notes and results, for notebooks and log files."""

    def note(self, text: str) -> None:
        print(f"Note: {text}", flush=True)

    def line(self, text: str) -> None:
        print(text, flush=True)


def process_count() -> int:
    """How many processes train together, as set by `accelerate launch` and `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the one process that writes files and prints."""
    return os.environ.get("RANK", "0") == "0"


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


@contextmanager
def collect_only_new_objects() -> Iterator[None]:
    """Let the garbage collector pass over modules and models: it took half of the time of a short request.

    Afterwards it sees them again, or Triton's binding says at the end of the process that objects are left.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

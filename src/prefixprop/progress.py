"""Progress of long computations: notes, stages and bars."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


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

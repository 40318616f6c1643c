"""Progress on the terminal: bars that move, and in a log file a line now and then."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from prefixprop.cli.messages import printable
from prefixprop.progress import Progress

_SECONDS_BETWEEN_LINES = 60.0


class TerminalProgress(Progress):
    """A bar for what is going on, in place of the one before; notes and results stay on the screen.

    Where the output is no terminal there are no bars: at most once a minute a line says how far the work is.
    """

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.console = console
        self.bars = Bars(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.current: dict[str, TaskID] = {}
        self.started = self.last_line = time.monotonic()

    def __enter__(self) -> TerminalProgress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def note(self, text: str) -> None:
        self.console.print(Text.assemble(("Note:", "yellow"), f" {printable(text)}"), highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def stage(self, what: str) -> None:
        self._only(what, None)

    def advance(self, what: str, done: int, total: int, detail: str = "") -> None:
        # Training goes on after the evaluation of an epoch, so its bar stays beneath that of the evaluation.
        if what not in self.current:
            self._only(what, total, keep="training")
        described = f"{what} {detail}".rstrip()
        self.bars.update(self.current[what], completed=done, total=total, description=described)
        if done == total and what != "training":
            self.bars.remove_task(self.current.pop(what))
        if not self.console.is_terminal and time.monotonic() - self.last_line > _SECONDS_BETWEEN_LINES:
            minutes = (time.monotonic() - self.started) / 60
            self.line(f"{described}: {done:,} of {total:,}, {minutes:.0f} minutes so far")

    def _only(self, what: str, total: int | None, keep: str | None = None) -> None:
        for name in [name for name in self.current if name != keep]:
            self.bars.remove_task(self.current.pop(name))
        self.current[what] = self.bars.add_task(what, total=total)

"""What commands print: errors in one clean line each, progress, and nothing that controls the terminal."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Collection, Iterator, Mapping

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from prefixprop.lazy_imports import import_optional
from prefixprop.progress import Progress, handling_signals, interrupt

# What readers, models, settings and files raise with a message for the user (TrainingError, among others, is a
# RuntimeError). Anything else is a bug, and its traceback is wanted.
EXPECTED = (ValueError, OSError, ImportError, RuntimeError)
# C0 and C1 control characters, halves of surrogate pairs, and what turns the direction of text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_SECONDS_BETWEEN_LINES = 60.0
# How to go on after Ctrl-C or SIGTERM.
RESUME = "Continue with --resume."
REPEAT = "The same command continues from here."


def printable(text: str) -> str:
    r"""The text, such as a label, an id or a path, with control characters as escapes like \x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@contextlib.contextmanager
def clean_errors(after_a_stop: str = "") -> Iterator[None]:
    """Print expected errors as `Error: …` and exit with status 1.

    After Ctrl-C or SIGTERM it prints `after_a_stop`, which says how to go on, and exits with status 130.
    """
    console = Console(stderr=True)
    try:
        with handling_signals(interrupt, [signal.SIGTERM]):
            yield
    except (BrokenPipeError, typer.Exit):
        raise  # the reader of the output is gone, or the command has said why it ends
    except EXPECTED as error:
        for line in describe(error).splitlines():
            console.print(Text.assemble(("Error:", "bold red"), f" {printable(line)}"), soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print(f"[bold red]Stopped.[/] {after_a_stop}".rstrip(), highlight=False)
        raise typer.Exit(130) from None


def print_rows(console: Console, title: str, rows: Mapping[str, str]) -> None:
    """A list of names, each with what there is to say of it; no name is cut, however narrow the terminal is."""
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, text in rows.items():
        table.add_row(f" {name}", Text(text))
    console.print(table, "")


def refuse(context: typer.Context, names: Collection[str], reason: str) -> None:
    """Raise for options of these names that were given, and would have no effect."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"{option.opts[0]} would change nothing here: {reason}. Leave it out.")


def need_report_packages(purpose: str) -> None:
    """Raise if the packages of the extra `report` are not installed."""
    for package in ("pandas", "jinja2", "matplotlib"):
        import_optional(package, purpose, extra="report")


def describe(error: BaseException) -> str:
    """The message; an error of the operating system begins with its file, like other errors about files."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


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

    def advance(self, what: str, done: int, total: int | None, detail: str = "") -> None:
        # Training goes on after the evaluation of an epoch, so its bar stays beneath that of the evaluation.
        if what not in self.current:
            self._only(what, total, keep="training")
        described = f"{what} {detail}".rstrip()
        self.bars.update(self.current[what], completed=done, total=total, description=described)
        if done == total and what != "training":
            self.bars.remove_task(self.current.pop(what))
        if not self.console.is_terminal and time.monotonic() - self.last_line > _SECONDS_BETWEEN_LINES:
            minutes = (time.monotonic() - self.started) / 60
            so_far = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            self.line(f"{described}: {so_far}, {minutes:.0f} min so far")

    def _only(self, what: str, total: int | None, keep: str | None = None) -> None:
        for name in [name for name in self.current if name != keep]:
            self.bars.remove_task(self.current.pop(name))
        self.current[what] = self.bars.add_task(what, total=total)

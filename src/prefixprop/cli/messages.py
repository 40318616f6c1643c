"""What commands print: errors in one clean line each, never a traceback; nothing that controls the terminal."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefixprop.optional_packages import import_optional

# What readers, models, settings and files raise with a message for the user (TrainingError, among others, is a
# RuntimeError). Anything else is a bug, and its traceback is wanted.
EXPECTED = (ValueError, OSError, ImportError, RuntimeError)
# C0 and C1 control characters, halves of surrogate pairs, and what turns the direction of text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""The text, such as a label, an id or a path, with control characters as escapes like \x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@contextlib.contextmanager
def clean_errors(resumable: bool = False) -> Iterator[None]:
    """Print expected errors as `Error: …` and exit with status 1."""
    console = Console(stderr=True)
    try:
        yield
    except (BrokenPipeError, typer.Exit):
        raise  # the reader of the output is gone, or the command has said why it ends
    except EXPECTED as error:
        for line in describe(error).splitlines():
            console.print(Text.assemble(("Error:", "bold red"), f" {printable(line)}"), soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print(f"[bold red]Stopped.[/]{' Continue with --resume.' if resumable else ''}", highlight=False)
        raise typer.Exit(130) from None


def print_rows(console: Console, title: str, rows: Mapping[str, str]) -> None:
    """A list of names, each with what there is to say of it; no name is cut, however narrow the terminal is."""
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, text in rows.items():
        table.add_row(f" {name}", Text(text))
    console.print(table, "")


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Raise for options that were given, are not None, and would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} would change nothing here: {reason}. Leave it out.")


def need_report_packages(purpose: str) -> None:
    """Raise if the packages of the extra `report` are not installed."""
    for package in ("pandas", "jinja2", "matplotlib"):
        import_optional(package, purpose, extra="report")


def describe(error: BaseException) -> str:
    """The message; an error of the operating system begins with its file, like other errors about files."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__

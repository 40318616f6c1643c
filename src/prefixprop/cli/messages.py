"""Errors on the command line: one clean line each, never a traceback."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Iterator, Mapping

import typer
from rich.console import Console

# What readers, models, settings and files raise with a message for the user (TrainingError, among others, is a
# RuntimeError). Anything else is a bug, and its traceback is wanted.
EXPECTED = (ValueError, OSError, ImportError, RuntimeError)


@contextlib.contextmanager
def clean_errors(resumable: bool = False) -> Iterator[None]:
    """Print expected errors as `Error: …` and leave with exit status 1."""
    console = Console(stderr=True)
    try:
        yield
    except (BrokenPipeError, typer.Exit):
        raise  # the reader of the output is gone, or the command has said why it ends
    except EXPECTED as error:
        for line in describe(error).splitlines():
            console.print(f"[bold red]Error:[/] {_escaped(line)}", soft_wrap=True, highlight=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print(f"[bold red]Stopped.[/]{' Continue with --resume.' if resumable else ''}", highlight=False)
        raise typer.Exit(130) from None


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Raise for options that were given, are not None, and would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} would change nothing here: {reason}. Leave it out.")


def describe(error: BaseException) -> str:
    """The message; an error of the operating system begins with its file, like other errors about files."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def printable(text: str) -> str:
    """The text with control characters spelled out, so that a label or a path cannot steer the terminal.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(
        character.encode("unicode_escape").decode() if _steers(character) else character for character in text
    )


def _steers(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"


def _escaped(text: str) -> str:
    return printable(text).replace("[", r"\[")

"""Errors for people: one line instead of a traceback."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def clean_errors() -> Iterator[None]:
    """Turn what can go wrong outside the program, in files, memory or packages, into a line and exit status 1."""
    try:
        yield
    except BrokenPipeError:
        raise  # nobody reads any more, so there is nobody to tell
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        print(f"Error: {_message(error)}", file=sys.stderr)
        raise typer.Exit(1) from error


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__

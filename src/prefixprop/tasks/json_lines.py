"""Reading JSON lines: one JSON object per line, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def read_json_lines(path: Path | Traversable) -> list[dict[str, Any]]:
    """Return the objects of a UTF-8 JSON lines file, gzipped if its name ends in `.gz`; skip blank lines.

    A line that is not a JSON object, or damaged gzip data, raises a `ValueError` beginning with `file:line`.
    """
    return [record for _, record in iterate_json_lines(path)]


def iterate_json_lines(path: Path | Traversable) -> Iterator[tuple[int, dict[str, Any]]]:
    """Like `read_json_lines`, one object at a time, each with the number of its line."""
    number = 0
    with path.open("rb") as raw:
        lines = gzip.GzipFile(fileobj=raw) if path.name.lower().endswith(".gz") else raw
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, parse_object(line, f"{path}:{number}")
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path}:{number + 1}: the gzip data is damaged: {error}") from error


def decode_line(line: bytes, place: str) -> str:
    """Decode a line of a UTF-8 file; `place` is its `file:line`, for the error."""
    try:
        # Editors on Windows begin a file with a byte-order mark, which is no part of its text.
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: the text is not UTF-8 ({error}); save the file as UTF-8.") from error


def parse_object(line: bytes, place: str) -> dict[str, Any]:
    """Parse a line that must hold one JSON object; `place` is its `file:line`, for the error."""
    # Without its end: of an object that breaks off, Python would tell the column in the line after.
    text = decode_line(line, place).rstrip(" \t\r\n")
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: broken JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists within thousands of lists
        raise ValueError(f"{place}: this JSON cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{place}: expected a JSON object, got {type(record).__name__}")
    return record

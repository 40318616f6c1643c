"""Documents to predict: from a table, a folder of text files or standard input, in windows of about two seconds.

- A table (JSON lines, CSV, TSV, Parquet) has a text column, and may have an id column; a `.txt` file is one document.
- A folder's documents are its `.txt` files, those in its subfolders included; the id is the path within the folder.
- Standard input is JSON lines if its first non-blank line begins with `{`; otherwise every line is a document, and a
  blank line is an empty one.

Where there is no id column, documents are numbered from 1.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, Generic, TypeVar

from prefixprop.data.files import Columns
from prefixprop.data.rows import (
    Row,
    decode_line,
    default_id_column,
    id_of,
    parse_object,
    read_rows,
    read_text,
    text_of,
)

STANDARD_INPUT = "-"
_STANDARD_INPUT_NAME = "standard input"

WINDOW_SECONDS = 2.0
MAX_DOCUMENTS = 4096  # in a window
MAX_CHARACTERS = 8_000_000
_SECONDS_TO_CLOSE = 2.0  # a thread that waits for standard input does not end

Item = TypeVar("Item")


@dataclass(frozen=True)
class InputDocument:
    id: str
    text: str


def read_inputs(path: str | Path, columns: Columns) -> Iterator[InputDocument]:
    """The documents of a table, a folder or standard input (`-`), as they arrive.

    A bad one raises a `ValueError` that names its `file:line`.
    """
    if path == STANDARD_INPUT:
        # Detached: Python closes sys.stdin when it ends, and would fail while a thread still reads from it.
        return read_standard_input(sys.stdin.detach(), columns)  # type: ignore[union-attr]
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder.")
    return _documents_of(read_rows([path]), columns)


def read_standard_input(stream: BinaryIO, columns: Columns) -> Iterator[InputDocument]:
    lines = iter(enumerate(stream, start=1))
    opening = []
    for number, line in lines:
        opening.append((number, line))
        if line.strip():
            break
    else:
        raise ValueError(f"{_STANDARD_INPUT_NAME} is empty: there are no documents.")
    all_lines = itertools.chain(opening, lines)
    if decode_line(line, f"{_STANDARD_INPUT_NAME}:{number}").lstrip().startswith("{"):
        return _documents_of(_json_rows(all_lines), columns)
    return _plain_lines(all_lines)


def _json_rows(lines: Iterator[tuple[int, bytes]]) -> Iterator[Row]:
    for number, line in lines:
        if line.strip():
            location = f"{_STANDARD_INPUT_NAME}:{number}"
            yield Row(location, parse_object(line, location))


def _plain_lines(lines: Iterator[tuple[int, bytes]]) -> Iterator[InputDocument]:
    for number, line in lines:
        text = decode_line(line, f"{_STANDARD_INPUT_NAME}:{number}").rstrip("\r\n")
        yield InputDocument(str(number), text)


def _documents_of(rows: Iterable[Row], columns: Columns) -> Iterator[InputDocument]:
    id_column = columns.id
    for number, row in enumerate(rows, start=1):
        # The first row decides, so that a later row without an id is an error and does not get a number.
        if number == 1 and id_column is None:
            id_column = default_id_column(row)
        name = str(number) if id_column is None else id_of(row, id_column)
        yield InputDocument(name, text_of(row, columns.text))


def _read_folder(folder: Path) -> Iterator[InputDocument]:
    paths = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not paths:
        raise ValueError(f"{folder}: there are no .txt files in this folder; give a folder of texts, or a file.")
    for path in paths:
        yield InputDocument(path.relative_to(folder).as_posix(), read_text(path))


class ReadAhead(Generic[Item]):
    """Makes items in a thread, at most `ahead` and one more of them ahead of those that were taken."""

    def __init__(self, items: Iterator[Item], ahead: int) -> None:
        self._arrived: queue.Queue[Item | Exception] = queue.Queue(ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(items,), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        item = self._arrived.get()
        if isinstance(item, Exception):
            self._arrived.put(item)  # the next call raises it again
            raise item
        return item

    def is_waiting(self) -> bool:
        """Whether the next item has not arrived yet."""
        return self._arrived.empty()

    def close(self) -> None:
        """Make no further items, and wait a little for the one under way."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._arrived.get_nowait()
        self._thread.join(_SECONDS_TO_CLOSE)

    def _read(self, items: Iterator[Item]) -> None:
        while not self._stopped.is_set():
            try:
                self._arrived.put(next(items))
            except Exception as error:  # including the end, a StopIteration
                self._arrived.put(error)
                return


def windows(
    items: Iterable[Item],
    text_of: Callable[[Item], str],
    is_waiting: Callable[[], bool] = lambda: False,
    first: int = 1,
) -> Iterator[list[Item]]:
    """Consecutive items in lists that take the caller about `WINDOW_SECONDS` each.

    The first list has at most `first` items. After it, the time that the caller took for the last one decides how
    many items and characters the next may have, up to twice as many. A window ends early if it is slow to fill, or if
    `is_waiting` says that the next item has not arrived. If `items` raises, the items before the error are yielded
    first.
    """
    iterator = iter(items)
    max_items, max_characters = first, MAX_CHARACTERS
    end: Exception | None = None
    while end is None:
        window: list[Item] = []
        characters, started = 0, perf_counter()
        try:
            while not window or (
                len(window) < max_items
                and characters < max_characters
                and perf_counter() - started < WINDOW_SECONDS
                and not is_waiting()
            ):
                window.append(next(iterator))
                characters += len(text_of(window[-1]))
        except Exception as error:  # including the end, a StopIteration
            end = error
        if window:
            given = perf_counter()
            yield window
            growth = min(2.0, WINDOW_SECONDS / max(perf_counter() - given, 1e-6))
            max_items = min(MAX_DOCUMENTS, int(len(window) * growth))
            max_characters = min(MAX_CHARACTERS, int(characters * growth))
    if not isinstance(end, StopIteration):
        raise end

"""Documents to predict: from a table, a folder of text files, or standard input.

- A table (JSON lines, CSV, TSV, Parquet) has a text column, and may have an id column; a `.txt` file is one document.
- A folder's documents are its `.txt` files, those in folders below included; the id is the path in the folder.
- Standard input is JSON lines if its first line that is not blank begins with `{`; otherwise every line is a
  document, a blank one an empty document.

Where there is no id column, documents are numbered from 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

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


@dataclass(frozen=True)
class InputDocument:
    """A document to predict; `has_own_id` unless it was numbered or named by its path, which cannot repeat."""

    id: str
    text: str
    has_own_id: bool


@dataclass(frozen=True)
class InputColumns:
    """The columns of a table; without `id`, the column "id" is taken if there is one."""

    text: str = "text"
    id: str | None = None


def read_inputs(path: str | Path, columns: InputColumns) -> Iterator[InputDocument]:
    """The documents of a table or a folder; a bad one raises a `ValueError` with its `file:line`."""
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder.")
    return _documents_of(read_rows([path]), columns)


def read_standard_input(stream: BinaryIO, columns: InputColumns) -> Iterator[InputDocument]:
    """The documents of standard input, as they come in."""
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
        yield InputDocument(str(number), text, has_own_id=False)


def _documents_of(rows: Iterable[Row], columns: InputColumns) -> Iterator[InputDocument]:
    id_column = columns.id
    for number, row in enumerate(rows, start=1):
        # The first row decides, so that a later row without an id is an error and does not get a number.
        if number == 1 and id_column is None:
            id_column = default_id_column(row)
        name = str(number) if id_column is None else id_of(row, id_column)
        yield InputDocument(name, text_of(row, columns.text), has_own_id=id_column is not None)


def _read_folder(folder: Path) -> Iterator[InputDocument]:
    paths = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not paths:
        raise ValueError(f"{folder}: there are no .txt files in this folder; give a folder of texts, or a file.")
    for path in paths:
        yield InputDocument(path.relative_to(folder).as_posix(), read_text(path), has_own_id=False)

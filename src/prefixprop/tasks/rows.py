"""Reading tables of documents row by row: JSON lines, CSV, TSV and Parquet.

Every row knows where it stands, so that whatever is wrong with it can be reported as `file:line`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixprop.optional_packages import import_optional
from prefixprop.tasks.json_lines import decode_line, iterate_json_lines

# The csv module stops at fields of 131,072 characters, which long documents exceed; this is the largest limit
# that every platform takes.
_LONGEST_CSV_FIELD = 2**31 - 1
_PARQUET_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Row:
    """One row of a table; `place` is its file and line, for messages."""

    place: str
    values: Mapping[str, Any]


def read_rows(paths: Iterable[str | Path]) -> Iterator[Row]:
    """Read the rows of one or more files, one file after the other, by what their names end in (`ENDINGS`).

    Text is UTF-8. CSV and TSV files begin with a row of column names and quote with `"`. Every file is looked for at
    once; its content is read, and a file without rows complained about, while the rows are taken.
    """
    readers = [(path, _reader(path)) for path in map(Path, paths)]
    return _rows_of(readers)


def _rows_of(readers: list[tuple[Path, Callable[[Path], Iterator[Row]]]]) -> Iterator[Row]:
    for path, reader in readers:
        has_rows = False
        for row in reader(path):
            has_rows = True
            yield row
        if not has_rows:
            raise ValueError(f"{path}: the file is empty: it has no documents.")


def _reader(path: Path) -> Callable[[Path], Iterator[Row]]:
    reader = next((_READERS[ending] for ending in ENDINGS if path.name.lower().endswith(ending)), None)
    if reader is None:
        raise ValueError(f"{path}: unknown kind of file; its name must end in one of {', '.join(ENDINGS)}.")
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder; give the files in it.")
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    return reader


def _read_json_rows(path: Path) -> Iterator[Row]:
    for number, record in iterate_json_lines(path):
        yield Row(f"{path}:{number}", record)


def _read_csv(path: Path) -> Iterator[Row]:
    return _read_separated(path, separator=",")


def _read_tsv(path: Path) -> Iterator[Row]:
    return _read_separated(path, separator="\t")


def _read_separated(path: Path, separator: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_CSV_FIELD)
    # Not strict, the csv module would read on to the end of the file for a quote that nobody closed.
    reader = csv.reader(_decoded_lines(path), delimiter=separator, strict=True)
    names: list[str] = []
    line = 1
    try:
        for fields in reader:
            place = f"{path}:{line}"
            line = reader.line_num + 1
            if not fields:
                continue
            if not names:
                names = _column_names(fields, place)
            elif len(fields) != len(names):
                raise ValueError(
                    f"{place}: broken row: {len(fields)} fields where there are {len(names)} columns "
                    f"({', '.join(names)}); a text with a separator, a quote or a line break must be quoted."
                )
            else:
                yield Row(place, dict(zip(names, fields, strict=True)))
    except csv.Error as error:
        raise ValueError(
            f"{path}:{line}: broken row: {error}; quotes inside a quoted text must be doubled, and closed at its end."
        ) from error


def _decoded_lines(path: Path) -> Iterator[str]:
    # Decoding line by line, rather than by the file object, is what tells the line of a wrong byte.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield decode_line(line, f"{path}:{number}")


def _column_names(names: list[str], place: str) -> list[str]:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{place}: the column {repeated[0]!r} occurs more than once; give every column its own name."
        )
    return names


def _read_parquet(path: Path) -> Iterator[Row]:
    arrow = import_optional("pyarrow", "Parquet files")
    parquet = import_optional("pyarrow.parquet", "Parquet files")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS_AT_ONCE):
                for record in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}:row {number}", record)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}:row {number + 1}: the Parquet data cannot be read: {error}") from error


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_json_rows,
    ".jsonl.gz": _read_json_rows,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
}
ENDINGS = tuple(_READERS)

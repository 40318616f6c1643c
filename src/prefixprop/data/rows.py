"""Reading documents row by row: tables (JSON, CSV, TSV, Parquet), text files, and folders with a folder per label.

Every row knows its location, so that an error in it can be reported as `file:line`.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import itertools
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prefixprop.lazy_imports import import_optional

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The csv module stops at fields of 131,072 characters, which long documents exceed; this is the largest limit
# that every platform takes.
_LONGEST_CSV_FIELD = 2**31 - 1
_PARQUET_ROWS_AT_ONCE = 256
_BLANK = b"\xef\xbb\xbf \t\r\n"  # with the byte-order mark
_ID_COLUMN = "id"


@dataclass(frozen=True)
class Row:
    """One row of a table; `location` is its file and line, for messages."""

    location: str
    values: Mapping[str, Any]


class FileRows(Iterable[Row]):
    """The rows of files, read again for every iteration."""

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self._readers = [(path, *_ending_and_reader(path)) for path in map(Path, paths)]

    def __iter__(self) -> Iterator[Row]:
        for path, _, reader in self._readers:
            row = None
            for row in reader(path):
                yield row
            if row is None:
                raise ValueError(f"{path}: the file is empty: it has no documents.")

    def digest(self) -> str:
        """Identifies the rows by the bytes of the files, without parsing or decompressing them."""
        digest = hashlib.sha256()
        for path, ending, _ in self._readers:
            for part in _labelled_texts(path) if path.is_dir() else [path]:
                name = part.relative_to(path).as_posix() if path.is_dir() else ending
                with part.open("rb") as file:
                    digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


def read_rows(paths: Iterable[str | Path]) -> FileRows:
    """Read the rows of one or more files or folders, one after the other, by what their names end in.

    - JSON lines (`.jsonl`), one array of objects (`.json`), CSV, TSV and Parquet are tables. CSV and TSV begin with
      a line of column names and quote with `"`. CSV is separated by semicolons if that line has no comma.
    - A `.txt` file is one document, with the column "text" only.
    - A folder holds a folder per label with `.txt` files: the columns are "id" (the path), "text" and "label".

    All but Parquet may be compressed (`.gz`, `.xz`). Text is UTF-8. A missing file raises an error at once; a broken
    or empty one while the rows are read.
    """
    return FileRows(paths)


def _ending_and_reader(path: Path) -> tuple[str, Callable[[Path], Iterator[Row]]]:
    if path.is_dir():
        if not _labelled_texts(path):
            raise ValueError(f"{path}: a folder of documents needs a folder per label with .txt files in it.")
        return "", _read_folder
    found = next((pair for pair in _READERS.items() if path.name.lower().endswith(pair[0])), None)
    if found is None:
        raise ValueError(f"{path}: unknown kind of file; its name must end in one of {KINDS}.")
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    return found


def read_json_lines(path: Path | Traversable) -> list[dict[str, Any]]:
    """Return the objects of a UTF-8 JSON lines file, compressed if its name ends in `.gz` or `.xz`; skip blank lines.

    A line that is not a JSON object, or damaged compressed data, raises a `ValueError` beginning with `file:line`.
    """
    return [record for _, record in iterate_json_lines(path)]


def iterate_json_lines(path: Path | Traversable) -> Iterator[tuple[int, dict[str, Any]]]:
    """Like `read_json_lines`, one object at a time, each with the number of its line."""
    for number, line in _lines(path):
        if line.strip():
            yield number, parse_object(line, f"{path}:{number}")


def read_text(path: Path) -> str:
    """The content of a UTF-8 file."""
    return "".join(decode_line(line, f"{path}:{number}") for number, line in _lines(path))


def decode_line(line: bytes, location: str) -> str:
    """Decode a line of a UTF-8 file; `location` is its `file:line`, for the error."""
    try:
        # Editors on Windows begin a file with a byte-order mark, which is not part of its text.
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{location}: the text is not UTF-8 ({error}); save the file as UTF-8.") from error


def parse_object(line: bytes, location: str) -> dict[str, Any]:
    """Parse a line that must hold one JSON object; `location` is its `file:line`, for the error."""
    # Without its line end: for an object that breaks off, Python would report a column in the next line.
    text = decode_line(line, location).rstrip(" \t\r\n")
    return _checked_object(_parsed(text, location), location)


def _lines(path: Path | Traversable) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, decompressed if its name ends in `.gz` or `.xz`."""
    number, name = 0, path.name.lower()
    with path.open("rb") as raw:
        try:
            for number, line in enumerate(_decompressed(raw, name), start=1):
                yield number, line
        except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
            kind = "xz" if name.endswith(".xz") else "gzip"
            raise ValueError(f"{path}:{number + 1}: the {kind} data is damaged: {error}") from error


def _first_line(path: Path) -> bytes:
    """The first line that is not blank, without what stands around it."""
    return next((stripped for _, line in _lines(path) if (stripped := line.strip(_BLANK))), b"")


def _decompressed(raw: IO[bytes], name: str) -> Iterable[bytes]:
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    return lzma.LZMAFile(raw) if name.endswith(".xz") else raw


def _parsed(text: str, location: str, path: Path | None = None) -> Any:
    """The value of JSON; with a `path`, the text is the whole file, of which a syntax error has the line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = location if path is None else f"{path}:{error.lineno}"
        raise ValueError(f"{where}: broken JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists within thousands of lists
        raise ValueError(f"{location}: this JSON cannot be read: {error}") from error


def _checked_object(record: Any, location: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ValueError(f"{location}: expected a JSON object, got {type(record).__name__}")
    return record


def _read_json_lines(path: Path) -> Iterator[Row]:
    for number, record in iterate_json_lines(path):
        yield Row(f"{path}:{number}", record)


def _read_json(path: Path) -> Iterator[Row]:
    """One array of objects; JSON lines are read too, which some call `.json`."""
    return _read_json_array(path) if _first_line(path).startswith(b"[") else _read_json_lines(path)


def _read_json_array(path: Path) -> Iterator[Row]:
    for number, record in enumerate(_parsed(read_text(path), str(path), path), start=1):
        location = f"{path}:row {number}"
        yield Row(location, _checked_object(record, location))


def _read_separated(path: Path, separator: str | None = None) -> Iterator[Row]:
    if separator is None:
        header = _first_line(path)
        separator = ";" if b";" in header and b"," not in header else ","
    csv.field_size_limit(_LONGEST_CSV_FIELD)
    # Decoded line by line, so that an error names the line of a wrong byte.
    lines = (decode_line(line, f"{path}:{number}") for number, line in _lines(path))
    # If not strict, the csv module would read to the end of the file after a quote that is never closed.
    reader = csv.reader(lines, delimiter=separator, strict=True)
    names: list[str] = []
    line = 1
    try:
        for fields in reader:
            location = f"{path}:{line}"
            line = reader.line_num + 1
            if not fields:
                continue
            if not names:
                names = fields
                if repeated := [name for name, count in Counter(names).items() if count > 1]:
                    raise ValueError(f"{location}: the column {repeated[0]!r} occurs more than once; rename one.")
            elif len(fields) != len(names):
                raise ValueError(
                    f"{location}: broken row: {len(fields)} fields where there are {len(names)} columns "
                    f"({', '.join(names)}); a text with a separator, a quote or a line break must be quoted."
                )
            else:
                yield Row(location, dict(zip(names, fields, strict=True)))
    except csv.Error as error:
        raise ValueError(
            f"{path}:{line}: broken row: {error}; quotes inside a quoted text must be doubled, and closed at its end."
        ) from error


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


def _read_text_file(path: Path) -> Iterator[Row]:
    yield Row(str(path), {"text": read_text(path)})


def _labelled_texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*.txt") if path.is_file())


def _read_folder(folder: Path) -> Iterator[Row]:
    for path in _labelled_texts(folder):
        name = path.relative_to(folder).as_posix()
        yield Row(str(path), {"id": name, "text": read_text(path), "label": path.parent.name})


_TEXT_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_separated,
    ".tsv": functools.partial(_read_separated, separator="\t"),
    ".txt": _read_text_file,
}
_READERS = {".parquet": _read_parquet} | {
    ending + packed: reader
    for (ending, reader), packed in itertools.product(_TEXT_READERS.items(), ("", ".gz", ".xz"))
}
KINDS = ".jsonl, .json, .csv, .tsv (each also as .gz or .xz) and .parquet"  # of tables, which can have labels

# Large tables are published in parts: train-00000-of-00015.parquet.
_PART = r"(?:-(?P<part>\d+)-of-(?P<parts>\d+))?"
_ENDING = "|".join(re.escape(ending) for ending in _READERS if not ending.startswith(".txt"))


def find_split_files(folder: Path | None, *split_names: str, must_hold: str | None = None) -> list[Path]:
    """The files of one split, which may have several names ("dev", "validation").

    If there are none, the list is empty, or, with `must_hold`, an error says what belongs in the folder. All of them
    must have the same name and ending except for the number of a part: only the user knows whether `train.csv` or
    `train.jsonl` is meant.
    """
    if folder is None:
        raise ValueError(f"This task is not downloaded: pass --data-dir FOLDER, which must hold {must_hold}.")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder (data directory).")
    names = "|".join(map(re.escape, split_names))
    pattern = re.compile(rf"(?P<name>{names}){_PART}(?P<ending>{_ENDING})")
    matches = [match for path in sorted(folder.iterdir()) if (match := pattern.fullmatch(path.name))]
    found = ", ".join(match[0] for match in matches)
    if len({(match["name"], match["ending"], match["parts"]) for match in matches}) > 1:
        raise ValueError(f"{folder}: several files could be {split_names[0]}: {found}; keep one of them.")
    if must_hold is not None and not matches:
        raise FileNotFoundError(f"{folder}: there is no {split_names[0]}. The folder must hold {must_hold}.")
    parts = matches[0]["parts"] if matches else None
    if parts is not None and len(matches) != int(parts):
        raise ValueError(f"{folder}: {split_names[0]} has {int(parts)} parts, but there are only {found}.")
    return [folder / match[0] for match in matches]


def value_of(row: Row, column: str) -> Any:
    """The value in a column, which the row must have."""
    if column not in row.values:
        there = ", ".join(str(name) for name in row.values)
        raise ValueError(f"{row.location}: there is no column {column!r}; the columns are {there}.")
    return row.values[column]


def text_of(row: Row, column: str) -> str:
    """The text of a row; a gap in the table is an empty text."""
    text = value_of(row, column)
    if text is None:  # an empty document, which is counted rather than refused
        return ""
    if not isinstance(text, str):
        raise ValueError(f"{row.location}: the column {column!r} {no_text(text)}")
    return text


def no_text(value: Any) -> str:
    """What is wrong with a value that should be a text."""
    if isinstance(value, list | tuple):
        return "must hold one text per document; join the texts of a pair or a list into one."
    return f"must hold text, got {described(value)}."


def id_of(row: Row, column: str) -> str:
    """The id of the document in a row."""
    document_id = value_of(row, column)
    if document_id is None or document_id == "":
        raise ValueError(
            f"{row.location}: the id (column {column!r}) is missing; give every document one, or name another column "
            "with --id-column."
        )
    if not isinstance(document_id, str | int):
        raise ValueError(f"{row.location}: the id must be text or a whole number, got {described(document_id)}.")
    return str(document_id)


def add_id(locations: dict[str, str], row: Row, column: str) -> None:
    """Add the id of a row and its location; no two rows of a split may have the same."""
    document_id = id_of(row, column)
    if document_id in locations:
        raise ValueError(
            f"{row.location}: the id {document_id!r} is also that of {locations[document_id]}; ids must differ "
            "within a split."
        )
    locations[document_id] = row.location


def default_id_column(first: Row) -> str | None:
    """The column of ids if the user named none: "id" if the first row has it; otherwise documents get numbers."""
    return _ID_COLUMN if _ID_COLUMN in first.values else None


def described(value: Any) -> str:
    """A value of the wrong type, for messages."""
    return f"{type(value).__name__} {str(value)[:40]!r}"

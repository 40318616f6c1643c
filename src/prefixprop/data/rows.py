"""Reading documents row by row: tables (JSON lines, CSV, TSV, Parquet) and plain text, in files and in folders.

Every row knows its location, so that an error in it can be reported as `file:line`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prefixprop.optional_packages import import_optional

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def read_json_lines(path: Path | Traversable) -> list[dict[str, Any]]:
    """Return the objects of a UTF-8 JSON lines file, compressed if its name ends in `.gz` or `.xz`; skip blank lines.

    A line that is not a JSON object, or damaged compressed data, raises a `ValueError` beginning with `file:line`.
    """
    return [record for _, record in iterate_json_lines(path)]


def iterate_json_lines(path: Path | Traversable) -> Iterator[tuple[int, dict[str, Any]]]:
    """Like `read_json_lines`, one object at a time, each with the number of its line."""
    number = 0
    with path.open("rb") as raw:
        try:
            for number, line in enumerate(_decompressed(raw, path.name), start=1):
                if line.strip():
                    yield number, parse_object(line, f"{path}:{number}")
        except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
            kind = "xz" if path.name.lower().endswith(".xz") else "gzip"
            raise ValueError(f"{path}:{number + 1}: the {kind} data is damaged: {error}") from error


def _decompressed(raw: IO[bytes], name: str) -> Iterable[bytes]:
    if name.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    return lzma.LZMAFile(raw) if name.lower().endswith(".xz") else raw


def decode_line(line: bytes, location: str) -> str:
    """Decode a line of a UTF-8 file; `location` is its `file:line`, for the error."""
    try:
        # Editors on Windows begin a file with a byte-order mark, which is no part of its text.
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{location}: the text is not UTF-8 ({error}); save the file as UTF-8.") from error


def read_text(path: Path) -> str:
    """The content of a UTF-8 file."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}:{line}: the text is not UTF-8 ({error}); save the file as UTF-8.") from error


def parse_object(line: bytes, location: str) -> dict[str, Any]:
    """Parse a line that must hold one JSON object; `location` is its `file:line`, for the error."""
    # Without its line end: for an object that breaks off, Python would report a column in the next line.
    text = decode_line(line, location).rstrip(" \t\r\n")
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{location}: broken JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists within thousands of lists
        raise ValueError(f"{location}: this JSON cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{location}: expected a JSON object, got {type(record).__name__}")
    return record


# The csv module stops at fields of 131,072 characters, which long documents exceed; this is the largest limit
# that every platform takes.
_LONGEST_CSV_FIELD = 2**31 - 1
_PARQUET_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Row:
    """One row of a table; `location` is its file and line, for messages."""

    location: str
    values: Mapping[str, Any]


class FileRows(Iterable[Row]):
    """The rows of files, read anew whenever they are walked."""

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self._readers = [(path, *_ending_and_reader(path)) for path in map(Path, paths)]

    def __iter__(self) -> Iterator[Row]:
        for path, _, reader in self._readers:
            has_rows = False
            for row in reader(path):
                has_rows = True
                yield row
            if not has_rows:
                raise ValueError(f"{path}: the file is empty: it has no documents.")

    def digest(self) -> str:
        """Identifies the rows by the bytes of the files, which need not be parsed or decompressed for it."""
        digest = hashlib.sha256()
        for path, ending, _ in self._readers:
            with path.open("rb") as file:
                digest.update(ending.encode() + hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


def read_rows(paths: Iterable[str | Path]) -> FileRows:
    """Read the rows of one or more files, one file after the other, by what their names end in (`ENDINGS`, `.txt`).

    Text is UTF-8. CSV and TSV files begin with a row of column names and quote with `"`. A `.txt` file is one
    document and has the column "text" only. A missing file raises an error at once; a broken or empty one while the
    rows are read.
    """
    return FileRows(paths)


def _ending_and_reader(path: Path) -> tuple[str, Callable[[Path], Iterator[Row]]]:
    found = next((pair for pair in _READERS.items() if path.name.lower().endswith(pair[0])), None)
    if found is None:
        raise ValueError(f"{path}: unknown kind of file; its name must end in one of {', '.join(ENDINGS)}.")
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder; give the files in it.")
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    return found


def _read_json_rows(path: Path) -> Iterator[Row]:
    for number, record in iterate_json_lines(path):
        yield Row(f"{path}:{number}", record)


def _read_csv(path: Path) -> Iterator[Row]:
    return _read_separated(path, separator=",")


def _read_tsv(path: Path) -> Iterator[Row]:
    return _read_separated(path, separator="\t")


def _read_separated(path: Path, separator: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_CSV_FIELD)
    # If not strict, the csv module would read to the end of the file after a quote that is never closed.
    reader = csv.reader(_decoded_lines(path), delimiter=separator, strict=True)
    names: list[str] = []
    line = 1
    try:
        for fields in reader:
            location = f"{path}:{line}"
            line = reader.line_num + 1
            if not fields:
                continue
            if not names:
                names = _column_names(fields, location)
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


def _decoded_lines(path: Path) -> Iterator[str]:
    # The file object would not say in which line a wrong byte is; decoding line by line does.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield decode_line(line, f"{path}:{number}")


def _column_names(names: list[str], location: str) -> list[str]:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{location}: the column {repeated[0]!r} occurs more than once; give every column its own name."
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


def _read_text_rows(path: Path) -> Iterator[Row]:
    yield Row(str(path), {"text": read_text(path)})


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_json_rows,
    ".jsonl.gz": _read_json_rows,
    ".jsonl.xz": _read_json_rows,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
    ".txt": _read_text_rows,
}
ENDINGS = tuple(ending for ending in _READERS if ending != ".txt")  # of tables, which can have labels


# Large tables are published in parts: train-00000-of-00015.parquet.
_PART = r"(?:-(?P<part>\d+)-of-(?P<parts>\d+))?"
_ENDING = "|".join(re.escape(ending) for ending in ENDINGS)


def check_folder(folder: Path) -> None:
    """Raise an error unless the folder of a data set exists."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder (data directory).")


def find_split_files(folder: Path, *split_names: str) -> list[Path]:
    """The files of one split, which may have several names ("dev", "validation"); an empty list if there are none.

    All of them must have the same name and ending but for the number of a part: which of `train.csv` and
    `train.jsonl` is meant, only the user can say.
    """
    names = "|".join(map(re.escape, split_names))
    pattern = re.compile(rf"(?P<name>{names}){_PART}(?P<ending>{_ENDING})")
    matches = [match for path in sorted(folder.iterdir()) if (match := pattern.fullmatch(path.name))]
    found = ", ".join(match[0] for match in matches)
    if len({(match["name"], match["ending"], match["parts"]) for match in matches}) > 1:
        raise ValueError(f"{folder}: several files could be {split_names[0]}: {found}; keep one of them.")
    parts = matches[0]["parts"] if matches else None
    if parts is not None and len(matches) != int(parts):
        raise ValueError(f"{folder}: {split_names[0]} has {int(parts)} parts, but there are only {found}.")
    return [folder / match[0] for match in matches]

"""Reading rows: every format gives the same rows with their lines, and every error names file and line."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from prefixprop.data import read_json_lines, read_rows
from prefixprop.data.rows import find_split_files, read_text

RECORDS: list[dict[str, Any]] = [
    {"text": 'one, with a comma\nand a "quoted" line; really', "label": "a"},
    {"text": "naïve\u2028café\t", "label": "b"},
]
LINES = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS).encode()
ARRAY = json.dumps(RECORDS, ensure_ascii=False, indent=1).encode()
CSV = 'text,label\n"one, with a comma\nand a ""quoted"" line; really",a\nnaïve\u2028café\t,b\n'.encode()
SEMICOLONS = 'text;label\n"one, with a comma\nand a ""quoted"" line; really";a\nnaïve\u2028café\t;b\n'.encode()
TSV = 'text\tlabel\n"one, with a comma\nand a ""quoted"" line; really"\ta\n"naïve\u2028café\t"\tb\n'.encode()
MARK = b"\xef\xbb\xbf"  # what editors on Windows begin a file with


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def values(*paths: Path) -> list[dict[str, Any]]:
    return [dict(row.values) for row in read_rows(paths)]


@pytest.mark.parametrize("pack", [("", bytes), (".gz", gzip.compress), (".XZ", lzma.compress)])
@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("x.jsonl", LINES, [1, 2]),
        ("x.JSONL", MARK + LINES.replace(b"\n", b"\r\n\r\n"), [1, 3]),
        ("x.json", ARRAY, ["row 1", "row 2"]),
        ("x.json", MARK + b" \n" + json.dumps(RECORDS).encode() + b"\n", ["row 1", "row 2"]),
        ("x.json", LINES, [1, 2]),
        ("x.csv", CSV, [2, 4]),
        ("x.CSV", CSV.replace(b"\n", b"\r\n").replace(b"comma\r", b"comma"), [2, 4]),
        ("x.csv", MARK + CSV.replace(b",a\n", b",a\n\n"), [2, 5]),
        ("x.csv", SEMICOLONS, [2, 4]),
        ("x.tsv", TSV, [2, 4]),
    ],
)
def test_every_text_format_gives_the_same_rows_with_their_lines(
    tmp_path: Path, pack: tuple[str, Callable[[bytes], bytes]], name: str, content: bytes, lines: list[Any]
) -> None:
    path = write(tmp_path / f"{name}{pack[0]}", pack[1](content))
    assert values(path) == RECORDS
    assert [row.location for row in read_rows([path])] == [f"{path}:{line}" for line in lines]


def test_parquet_and_several_files_after_each_other(tmp_path: Path) -> None:
    path, long = tmp_path / "x.parquet", "long " * 100_000  # more than Python's csv module reads by default
    records = [{"text": str(number), "label": number % 3} for number in range(600)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    csv = write(tmp_path / "a.csv", CSV + f"{long},c\n".encode())
    assert values(path, csv) == [*records, *RECORDS, {"text": long, "label": "c"}]
    assert [row.location for row in read_rows([path])][-1] == f"{path}:row 600"


def test_a_text_file_is_one_document_without_a_label(tmp_path: Path) -> None:
    content = MARK + "naïve\r\n\ncafé".encode()
    for path in (write(tmp_path / "x.txt", content), write(tmp_path / "x.txt.gz", gzip.compress(content))):
        assert values(path) == [{"text": "naïve\r\n\ncafé"}] and read_text(path) == "naïve\r\n\ncafé"


def test_a_folder_has_a_folder_per_label(tmp_path: Path) -> None:
    files = {"tax/2.txt": "b", "tax/10.txt": "c", "art/x.txt": "a", "art/note.md": "", "top.txt": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [tuple(row.values.values()) for row in read_rows([tmp_path])] == [
        ("art/x.txt", "a", "art"),
        ("tax/10.txt", "c", "tax"),
        ("tax/2.txt", "b", "tax"),
    ]
    before = read_rows([tmp_path]).digest()
    (tmp_path / "tax/2.txt").rename(tmp_path / "art/2.txt")
    assert read_rows([tmp_path]).digest() != before
    moved = read_rows([tmp_path]).digest()
    write(tmp_path / "art" / "2.txt", b"fine\n\xe4")
    assert read_rows([tmp_path]).digest() != moved
    with pytest.raises(ValueError, match=r"art/2\.txt:2: the text is not UTF-8"):
        values(tmp_path)
    with pytest.raises(ValueError, match=r"tax: a folder of documents needs a folder per label with \.txt files"):
        read_rows([tmp_path / "tax"])


@pytest.mark.parametrize(
    ("name", "content", "line", "complaint"),
    [
        ("x.csv", b"text,label\nok,a\none,two,three\n", 3, r"3 fields where there are 2 columns \(text, label\)"),
        ("x.csv", b'text,label\nok,a\n"never closed,b\nlast,a\n', 3, "broken row: .*closed at its end"),
        ("x.csv", b'text,label\n"closed" early,b\n', 2, "broken row: .*must be doubled"),
        ("x.csv", b"text,label\nok,a\n\xff\xfe,b\n", 3, "not UTF-8"),
        ("x.csv", b"text,label,text\n1,2,3\n", 1, "'text' occurs more than once"),
        ("x.txt", b"fine\n\xe4", 2, "not UTF-8"),
        ("x.jsonl", LINES + b'\n{"id": "c",\n' + LINES, 4, "broken JSON"),
        ("x.jsonl", LINES + b'\n{"id": ' + b"[" * 100_000 + b"\n", 4, "this JSON cannot be read"),
        ("x.jsonl", LINES + b'\n{"id": ' + b"1" * 5_000 + b"}\n", 4, "this JSON cannot be read"),
        ("x.jsonl", LINES + b"[1, 2]\n", 3, "expected a JSON object, got list"),
        ("x.jsonl", LINES + b'{"id": "\xff"}\n', 3, "not UTF-8"),
        ("x.json", b'[\n{"id": 3,\n oops', 3, "broken JSON"),
        ("x.json", b'[{"id": 3},\n\n7]', "row 2", "expected a JSON object, got int"),
        ("x.json", b'[{"id": 3}\n{"id": 4}]', 2, "broken JSON: Expecting ',' delimiter"),
        ("x.json", b'[{"id": 3}]\n[{"id": 4}]', 2, "broken JSON: Extra data"),
        ("x.json", b'\n[{"id": ' + b"[" * 100_000, "", "this JSON cannot be read"),
        ("x.json", b'{\n"data": []}', 1, "broken JSON"),
    ],
)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_what_is_wrong_is_reported_with_file_and_line(
    tmp_path: Path, name: str, content: bytes, line: int | str, complaint: str, packed: str
) -> None:
    path = write(tmp_path / f"{name}{packed}", gzip.compress(content) if packed else content)
    with pytest.raises(ValueError, match=complaint) as caught:
        values(path)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")


@pytest.mark.parametrize("begin", [b"", MARK], ids=["plain", "byte-order mark"])
@pytest.mark.parametrize("end", [b"", b" \r\n"])
@pytest.mark.parametrize(
    ("line", "column"),
    [('{"id": "é",', 12), ('{"id": "é", "text": "On ri', 21)],  # behind the last character; where a string begins
)
def test_a_line_that_breaks_off_names_a_column_of_its_own(
    tmp_path: Path, line: str, column: int, begin: bytes, end: bytes
) -> None:
    with pytest.raises(ValueError, match=rf"records.jsonl:1: broken JSON: .*\(column {column}\)"):
        read_json_lines(write(tmp_path / "records.jsonl", begin + line.encode() + end))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-12], lambda data: b"plain text", lambda data: data[:12] + b"\xff" * 20]
)
@pytest.mark.parametrize(("ending", "module", "kind"), [("gz", gzip, "gzip"), ("xz", lzma, "xz")])
@pytest.mark.parametrize(("name", "content"), [("x.jsonl", LINES), ("x.csv", CSV), ("x.json", ARRAY)])
def test_damaged_compressed_data_is_reported_with_its_file(
    tmp_path: Path, damage: Any, ending: str, module: Any, kind: str, name: str, content: bytes
) -> None:
    path = write(tmp_path / f"{name}.{ending}", damage(module.compress(content)))
    with pytest.raises(ValueError, match=rf"{name}\.{ending}:\d+: the {kind} data is damaged"):
        values(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.jsonl", b""), ("x.jsonl", b"\n\n"), ("x.csv", b""), ("x.tsv", b"text\tlabel\n"), ("x.json", b" [ ]\n")],
)
def test_an_empty_file_is_an_error_even_after_a_full_one(tmp_path: Path, name: str, content: bytes) -> None:
    full, empty = write(tmp_path / "full.csv", CSV), write(tmp_path / name, content)
    with pytest.raises(ValueError, match=rf"{name}: the file is empty: it has no documents"):
        values(full, empty)


def test_parquet_that_is_damaged_and_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", b"PAR1 not really PAR1")
    with pytest.raises(ValueError, match=r"x\.parquet:row 1: the Parquet data cannot be read"):
        values(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert values(write(tmp_path / "x.csv", CSV)) == RECORDS
    with pytest.raises(ImportError, match="Parquet files need the package pyarrow: pip install pyarrow"):
        values(path)


@pytest.mark.parametrize(
    ("name", "kind", "complaint"),
    [
        ("absent.csv", FileNotFoundError, r"absent\.csv: there is no such file"),
        ("x.xlsx", ValueError, r"x\.xlsx: unknown kind of file; .* \.jsonl, \.json, .* \.gz or \.xz\) and \.parquet"),
        ("x.parquet.gz", ValueError, r"x\.parquet\.gz: unknown kind of file"),
    ],
)
def test_files_are_looked_for_before_any_is_read(
    tmp_path: Path, name: str, kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        read_rows([write(tmp_path / "full.csv", CSV), tmp_path / name])


NAMES = ["train.jsonl.gz", "validation.parquet", "training.jsonl", "README.md", "test.txt"]
PARTS = [f"test-{part:05}-of-00003.parquet" for part in range(3)]


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (NAMES, ("train",), NAMES[:1]),
        (NAMES, ("dev", "validation"), NAMES[1:2]),
        (NAMES, ("test",), []),
        (PARTS[::-1], ("test",), PARTS),
        (PARTS[::2], ("test",), r"test has 3 parts, but there are only test-00000.*, test-00002"),
        (["dev.jsonl", "dev.csv"], ("dev",), r"several files could be dev: dev\.csv, dev\.jsonl; keep one of them"),
        (["dev.jsonl", "validation.jsonl"], ("dev", "validation"), r"several files could be dev: .*; keep one"),
        (["dev.jsonl", "dev-00000-of-00001.jsonl"], ("dev",), r"several files could be dev: .*; keep one"),
    ],
)
def test_the_files_of_a_split(tmp_path: Path, names: list[str], split: tuple[str, ...], expected: Any) -> None:
    for name in names:
        (tmp_path / name).touch()
    for missing in ("absent", names[0]):
        with pytest.raises(FileNotFoundError, match=f"{missing}: there is no such folder"):
            find_split_files(tmp_path / missing, *split)
    if isinstance(expected, list):
        assert find_split_files(tmp_path, *split) == [tmp_path / name for name in expected]
    else:
        with pytest.raises(ValueError, match=expected):
            find_split_files(tmp_path, *split)

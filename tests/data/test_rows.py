from __future__ import annotations

import gzip
import lzma
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from prefixprop.data import read_rows
from prefixprop.data.rows import ENDINGS

RECORDS: list[dict[str, Any]] = [
    {"text": 'one, with a comma\nand a "quoted" line', "label": "a"},
    {"text": "naïve\u2028café\t", "label": "b"},
]
JSON = (
    '{"text": "one, with a comma\\nand a \\"quoted\\" line", "label": "a"}\n'
    '{"text": "naïve\u2028café\\t", "label": "b"}\n'
).encode()
CSV = 'text,label\n"one, with a comma\nand a ""quoted"" line",a\nnaïve\u2028café\t,b\n'.encode()
TSV = 'text\tlabel\n"one, with a comma\nand a ""quoted"" line"\ta\n"naïve\u2028café\t"\tb\n'.encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def values(*paths: Path) -> list[dict[str, Any]]:
    return [dict(row.values) for row in read_rows(paths)]


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("x.jsonl", JSON, [1, 2]),
        ("x.jsonl.gz", gzip.compress(JSON), [1, 2]),
        ("x.JSONL.GZ", gzip.compress(JSON), [1, 2]),
        ("x.jsonl.xz", lzma.compress(JSON), [1, 2]),
        ("x.csv", CSV, [2, 4]),
        ("x.CSV", CSV.replace(b"\n", b"\r\n").replace(b"comma\r", b"comma"), [2, 4]),
        ("x.csv", b"\xef\xbb\xbf" + CSV.replace(b",a\n", b",a\n\n"), [2, 5]),
        ("x.tsv", TSV, [2, 4]),
    ],
)
def test_every_text_format_gives_the_same_rows_with_their_lines(
    tmp_path: Path, name: str, content: bytes, lines: list[int]
) -> None:
    path = write(tmp_path / name, content)
    assert values(path) == RECORDS
    assert [row.location for row in read_rows([path])] == [f"{path}:{line}" for line in lines]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    records = [{"text": str(number), "label": number % 3} for number in range(600)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    assert values(path) == records
    assert [row.location for row in read_rows([path])][-1] == f"{path}:row 600"


def test_files_follow_each_other(tmp_path: Path) -> None:
    assert values(write(tmp_path / "b.csv", CSV), write(tmp_path / "a.jsonl", JSON)) == RECORDS + RECORDS


def test_texts_longer_than_the_limit_of_the_csv_module(tmp_path: Path) -> None:
    text = "long " * 100_000
    assert values(write(tmp_path / "x.csv", f"text,label\n{text},a\n".encode())) == [{"text": text, "label": "a"}]


@pytest.mark.parametrize(
    ("name", "content", "line", "complaint"),
    [
        ("x.csv", b"text,label\nok,a\none,two,three\n", 3, r"3 fields where there are 2 columns \(text, label\)"),
        ("x.csv", b"text,label\nok,a\nshort\n", 3, "1 fields where there are 2 columns"),
        ("x.csv", b'text,label\nok,a\n"never closed,b\nlast,a\n', 3, "broken row: .*closed at its end"),
        ("x.csv", b'text,label\n"closed" early,b\n', 2, "broken row: .*must be doubled"),
        ("x.csv", b"text,label\nok,a\n\xff\xfe,b\n", 3, "not UTF-8"),
        ("x.tsv", b"text\tlabel\nok\ta\n\xe9\tb\n", 3, "not UTF-8"),
        ("x.csv", b"text,label,text\n1,2,3\n", 1, "'text' occurs more than once"),
        ("x.jsonl", b'{"text": "a"}\n{"text": \n', 2, "broken JSON"),
        ("x.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', 2, "not UTF-8"),
    ],
)
def test_what_is_wrong_is_reported_with_file_and_line(
    tmp_path: Path, name: str, content: bytes, line: int, complaint: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=complaint) as caught:
        values(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("name", "content"), [("x.jsonl", b""), ("x.jsonl", b"\n\n"), ("x.csv", b""), ("x.tsv", b"text\tlabel\n")]
)
def test_an_empty_file_is_an_error_even_after_a_full_one(tmp_path: Path, name: str, content: bytes) -> None:
    full, empty = write(tmp_path / "full.csv", CSV), write(tmp_path / name, content)
    with pytest.raises(ValueError, match=r"the file is empty: it has no documents") as caught:
        values(full, empty)
    assert str(caught.value).startswith(f"{empty}: ")


def test_damaged_parquet(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.parquet:row 1: the Parquet data cannot be read"):
        values(write(tmp_path / "x.parquet", b"PAR1 not really PAR1"))


def test_only_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert values(write(tmp_path / "x.csv", CSV)) == RECORDS
    with pytest.raises(ImportError, match="Parquet files need the package pyarrow: pip install pyarrow"):
        values(write(tmp_path / "x.parquet", b""))


def test_files_are_looked_for_before_any_is_read(tmp_path: Path) -> None:
    full = write(tmp_path / "full.csv", CSV)
    with pytest.raises(FileNotFoundError, match=r"absent\.csv: there is no such file"):
        read_rows([full, tmp_path / "absent.csv"])
    with pytest.raises(
        ValueError, match=r"x\.xlsx: unknown kind of file; .* \.jsonl, \.jsonl\.gz, \.jsonl\.xz, \.csv, \.tsv, \.par"
    ):
        read_rows([full, tmp_path / "x.xlsx"])
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"folder\.csv: this is a folder; give the files in it"):
        read_rows([tmp_path / "folder.csv"])


def test_a_text_file_is_one_document_without_a_label(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", b"\xef\xbb\xbf" + "naïve\n\ncafé".encode())
    assert values(path) == [{"text": "naïve\n\ncafé"}]
    assert ".txt" not in ENDINGS
    with pytest.raises(ValueError, match=r"y\.txt:2: the text is not UTF-8"):
        values(write(tmp_path / "y.txt", b"fine\n\xe4"))

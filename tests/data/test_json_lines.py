from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from prefixprop.data import iterate_json_lines, read_json_lines

RECORDS = [{"id": "a", "text": "naïve\u2028café"}, {"id": "b", "text": ""}]
CONTENT = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_reads_plain_and_gzipped_files(tmp_path: Path, name: str) -> None:
    assert read_json_lines(write(tmp_path / name, CONTENT)) == RECORDS


@pytest.mark.parametrize(
    "content",
    [
        CONTENT.rstrip(b"\n"),
        b"\n" + CONTENT.replace(b"\n", b"\n\n"),
        CONTENT.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + CONTENT,
    ],
    ids=["no last newline", "blank lines", "windows newlines", "byte-order mark"],
)
def test_accepts_what_editors_do_to_files(tmp_path: Path, content: bytes) -> None:
    assert read_json_lines(write(tmp_path / "records.jsonl", content)) == RECORDS


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    assert read_json_lines(write(tmp_path / "records.jsonl", b"")) == []


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
@pytest.mark.parametrize(
    ("bad_line", "complaint"),
    [
        (b'{"id": "c",\n', "broken JSON"),
        (b'{"id": ' + b"[" * 100_000 + b"\n", "this JSON cannot be read"),
        (b'{"id": ' + b"1" * 5_000 + b"}\n", "this JSON cannot be read"),
        (b"[1, 2]\n", "expected a JSON object, got list"),
        (b'{"id": "\xff"}\n', "not UTF-8"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path: Path, name: str, bad_line: bytes, complaint: str) -> None:
    path = write(tmp_path / name, CONTENT + b"\n" + bad_line + CONTENT)
    with pytest.raises(ValueError, match=complaint) as caught:
        read_json_lines(path)
    assert str(caught.value).startswith(f"{path}:4: ")


def test_broken_json_names_the_column(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"column 8"):
        read_json_lines(write(tmp_path / "records.jsonl", b'{"id": }'))


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte-order mark"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b" \n"])
@pytest.mark.parametrize(
    ("line", "column"),
    [
        ('{"id": "é", "text"', 19),  # behind the last character
        ('{"id": "é",', 12),
        ('{"id": "é", "text": "On ri', 21),  # where the string begins
    ],
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
def test_damaged_compressed_data_is_reported_with_its_file(tmp_path: Path, damage, ending, module, kind) -> None:
    path = tmp_path / f"records.jsonl.{ending}"
    path.write_bytes(damage(module.compress(CONTENT)))
    with pytest.raises(ValueError, match=f"{kind} data is damaged") as caught:
        read_json_lines(path)
    assert str(caught.value).startswith(f"{path}:")


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        read_json_lines(tmp_path / "absent.jsonl")


def test_records_come_one_at_a_time_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "records.jsonl", b"\n" + CONTENT + b"{broken")
    lines = iterate_json_lines(path)
    assert [next(lines), next(lines)] == [(2, RECORDS[0]), (3, RECORDS[1])]
    with pytest.raises(ValueError, match=r"records\.jsonl:4: broken JSON"):
        next(lines)

"""Documents from tables, folders and standard input."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from prefixprop.predict.inputs import InputColumns, InputDocument, read_inputs, read_standard_input

COLUMNS = InputColumns()


def read(path: Path, columns: InputColumns = COLUMNS) -> list[tuple[str, str]]:
    return [(document.id, document.text) for document in read_inputs(path, columns)]


def piped(content: bytes, columns: InputColumns = COLUMNS) -> list[tuple[str, str]]:
    return [(document.id, document.text) for document in read_standard_input(io.BytesIO(content), columns)]


def test_json_lines_with_and_without_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 7, "text": "one"}\n\n{"id": "x", "text": null}\n')
    assert read(path) == [("7", "one"), ("x", "")]
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert read(path) == [("1", "one"), ("2", "two")]
    path.write_text('{"nr": "A", "body": "one"}\n')
    (document,) = read_inputs(path, InputColumns("body", "nr"))
    assert document == InputDocument("A", "one", has_own_id=True)


def test_the_first_row_decides_whether_there_are_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a", "text": "one"}\n{"text": "two"}\n')
    with pytest.raises(ValueError, match=r"a.jsonl:2: there is no column 'id'; the columns are text"):
        read(path)


def test_other_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"one, two"\n')
    assert read(tmp_path / "a.csv") == [("1", "one, two")]
    (tmp_path / "a.tsv").write_text("text\nlower\n")
    assert read(tmp_path / "a.tsv") == [("1", "lower")]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": "packed"}))
    assert read(tmp_path / "a.jsonl.gz") == [("1", "packed")]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.table({"id": ["p"], "text": ["column"]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [("p", "column")]


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_text("two\nlines\n")
    (tmp_path / "a.txt").write_bytes("\ufeffnaïve".encode())
    (tmp_path / "notes.md").write_text("not read")
    (tmp_path / "z.txt").write_text("")
    assert read(tmp_path) == [("a.txt", "naïve"), ("b/2.txt", "two\nlines\n"), ("z.txt", "")]


def test_standard_input() -> None:
    assert piped(b"one document\r\n\n{two} three\n") == [("1", "one document"), ("2", ""), ("3", "{two} three")]
    assert piped(b"\n\nlast") == [("1", ""), ("2", ""), ("3", "last")]
    assert piped(b'\n {"text": "one", "id": "a"}\n\n{"text": "two", "id": "b"}') == [("a", "one"), ("b", "two")]


def test_faults_of_standard_input() -> None:
    with pytest.raises(ValueError, match="standard input is empty"):
        piped(b"")
    with pytest.raises(ValueError, match="standard input is empty"):
        piped(b"\n \n")
    with pytest.raises(ValueError, match="standard input:2: broken JSON"):
        piped(b'{"text": "one"}\n{"text": \n')
    with pytest.raises(ValueError, match="standard input:2: the text is not UTF-8"):
        piped(b"one\n\xff\n")
    with pytest.raises(ValueError, match="standard input:1: there is no column 'text'; the columns are body"):
        piped(b'{"body": "one"}')


def test_faults_of_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such file or folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"there are no \.txt files in this folder"):
        read(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"fine\nnot \xe4\n")
    with pytest.raises(ValueError, match=r"a\.txt:2: the text is not UTF-8"):
        read(tmp_path)
    with pytest.raises(ValueError, match=r"a\.docx: unknown kind of file; .*\.jsonl"):
        read((tmp_path / "a.txt").rename(tmp_path / "a.docx"))

"""Documents from tables, folders and standard input, and in windows of a few seconds."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from prefixprop.data.files import Columns
from prefixprop.predict import inputs
from prefixprop.predict.inputs import InputDocument, ReadAhead, read_inputs, read_standard_input, windows

COLUMNS = Columns()


def pairs(documents: Iterator[InputDocument]) -> list[tuple[str, str]]:
    return [(document.id, document.text) for document in documents]


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("a.jsonl", b'{"id": 7, "text": "one"}\n\n{"id": "x", "text": null}\n', COLUMNS, [("7", "one"), ("x", "")]),
        ("a.jsonl", b'{"text": "one"}\n{"text": "two"}\n', COLUMNS, [("1", "one"), ("2", "two")]),
        ("a.jsonl", b'{"nr": "A", "body": "one"}\n', Columns(text="body", id="nr"), [("A", "one")]),
        ("a.csv", b'id,text\n1,"one, two"\n', COLUMNS, [("1", "one, two")]),
    ],
)
def test_tables(tmp_path: Path, name: str, content: bytes, columns: Columns, expected: list) -> None:
    (tmp_path / name).write_bytes(content)
    assert pairs(read_inputs(tmp_path / name, columns)) == expected


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, text in {
        "b/2.txt": "two\nlines\n",
        "a.txt": "\ufeffnaïve",
        "notes.md": "not read",
        "z.txt": "",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert pairs(read_inputs(tmp_path, COLUMNS)) == [("a.txt", "naïve"), ("b/2.txt", "two\nlines\n"), ("z.txt", "")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one document\r\n\n{two} three\n", [("1", "one document"), ("2", ""), ("3", "{two} three")]),
        (b"\n\nlast", [("1", ""), ("2", ""), ("3", "last")]),
        (b'\n {"text": "one", "id": "a"}\n\n{"text": "two", "id": "b"}', [("a", "one"), ("b", "two")]),
        (b"", "standard input is empty"),
        (b"\n \n", "standard input is empty"),
        (b'{"text": "one"}\n{"text": \n', "standard input:2: broken JSON"),
        (b"one\n\xff\n", "standard input:2: the text is not UTF-8"),
        (b'{"body": "one"}', "standard input:1: there is no column 'text'; the columns are body"),
    ],
)
def test_standard_input(content: bytes, expected: list[tuple[str, str]] | str) -> None:
    with pytest.raises(ValueError, match=expected) if isinstance(expected, str) else nullcontext():
        assert pairs(read_standard_input(io.BytesIO(content), COLUMNS)) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere", None, "nowhere: there is no such file or folder"),
        (".", None, r"there are no \.txt files in this folder"),
        # The first row decides whether there are ids.
        ("a.jsonl", b'{"id": "a", "text": "one"}\n{"text": "two"}\n', r"a.jsonl:2: there is no column 'id'"),
    ],
)
def test_faults_of_files(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        list(read_inputs(tmp_path / name, COLUMNS))


# --- windows ----------------------------------------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass on the clock of `windows`."""
    now = [0.0]
    monkeypatch.setattr(inputs, "perf_counter", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


SHORT, LONG = "a" * 10, "a" * 1000


@pytest.mark.parametrize(
    ("items", "seconds_of", "limits", "sizes"),
    [
        (["text"] * 50, lambda _: 0.125, {}, [1, 2, 4, 8, 16, 16, 3]),
        (["text"] * 4, lambda _: 7.0, {}, [1, 1, 1, 1]),
        (["text"] * 30, lambda _: 0.0, {"MAX_DOCUMENTS": 8}, [1, 2, 4, 8, 8, 7]),
        (["text"] * 14, lambda _: 0.0, {"MAX_CHARACTERS": 15}, [1, 2, 4, 4, 3]),
        # One second each from the ninth window on; counted in documents it would be 200.
        ([SHORT] * 255 + [LONG] * 4, lambda text: len(text) / 1000, {}, [1, 2, 4, 8, 16, 32, 64, 128, 2, 2]),
    ],
    ids=["grow to two seconds", "slow documents", "at most so many", "at most so long", "long behind short ones"],
)
def test_windows(
    items: list[str],
    seconds_of: Callable[[str], float],
    limits: dict[str, int],
    sizes: list[int],
    passes: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(inputs, name, value)
    found, given = [], []
    for window in windows(items, text_of=str):
        found.append(len(window))
        given += window
        passes(sum(map(seconds_of, window)))
    assert given == items and found == sizes


def test_a_slow_source_does_not_hold_documents_back(passes: Callable[[float], None]) -> None:
    def slow() -> Iterator[str]:
        for number in range(12):
            passes(0.0 if number < 7 else 1.0)
            yield str(number)

    assert [len(window) for window in windows(slow(), text_of=str)] == [1, 2, 4, 2, 2, 1]


def test_what_has_arrived_is_given_while_more_is_awaited() -> None:
    more = threading.Event()

    def slow() -> Iterator[str]:
        yield from "abcde"
        assert more.wait(60)
        yield "f"
        raise ValueError("line 7 is broken")

    arriving = ReadAhead(slow(), ahead=10)
    found = windows(arriving, str, arriving.is_waiting)
    arrived: list[str] = []
    while len(arrived) < 5:  # would wait for ever if a window had to be full
        arrived += next(found)
    assert arrived == list("abcde")
    more.set()
    assert next(found) == ["f"]  # what comes before a fault is given
    with pytest.raises(ValueError, match="line 7 is broken"):
        next(found)


def test_reading_ahead_keeps_order_ends_and_is_bounded() -> None:
    taken: list[int] = []
    reading = ReadAhead((number for number in range(100) if taken.append(number) is None), ahead=3)
    assert next(reading) == 0
    time.sleep(0.1)
    assert taken == [0, 1, 2, 3, 4]  # one given, three waiting, one in the thread's hand
    assert list(reading) == list(range(1, 100))
    assert list(reading) == []
    unfinished = ReadAhead(iter(range(100)), ahead=1)
    assert next(unfinished) == 0
    unfinished.close()
    assert not unfinished._thread.is_alive()

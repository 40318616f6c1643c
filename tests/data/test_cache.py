"""The cache on the disk, and arrays of different lengths."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixprop.data.cache import RaggedArray, Writer, cache_folder, clear, entries, stored


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFIXPROP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def filling(*numbers: int, calls: list[Any] | None = None) -> Callable[[Writer], None]:
    def fill(writer: Writer) -> None:
        if calls is not None:
            calls.append(writer.folder)
        for number in numbers:
            writer.append("numbers", np.array([number], dtype=np.int16))
        writer.append("none", np.zeros(0))
        writer.facts["count"] = len(numbers)

    return fill


def refuse(writer: Writer) -> None:
    raise AssertionError("the entry was there")


def test_made_once_and_found_again(folder: Path) -> None:
    made = stored("kind", "key", filling(3, 4))
    found = stored("kind", "key", refuse)
    for entry in (made, found):
        assert isinstance(entry.arrays["numbers"], np.memmap) and entry.note is None
        assert entry.arrays["numbers"].tolist() == [3, 4] and entry.arrays["numbers"].dtype == np.int16
        assert entry.arrays["none"].tolist() == [] and entry.facts == {"count": 2}
    assert stored("kind", "other key", filling(5)).arrays["numbers"].tolist() == [5]
    assert folder.stat().st_mode & 0o077 == 0  # documents are nobody else's business


def test_processes_that_need_the_same_entry_make_it_once() -> None:
    calls: list[Any] = []
    workers = [threading.Thread(target=stored, args=("kind", "key", filling(1, calls=calls))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(calls) == 1


def test_what_fails_leaves_nothing() -> None:
    def fail(writer: Writer) -> None:
        writer.append("numbers", np.zeros(3))
        raise ValueError("line 7 is broken")

    with pytest.raises(ValueError, match="line 7 is broken"):
        stored("kind", "key", fail)
    assert entries() == [] and not [path for path in cache_folder().iterdir() if path.is_dir()]
    assert stored("kind", "key", filling(1)).arrays["numbers"].tolist() == [1]


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"\0"), lambda file: file.unlink()])
@pytest.mark.parametrize("name", ["numbers", "facts.json"])
def test_a_damaged_entry_is_made_anew(damage: Callable[[Path], None], name: str) -> None:
    stored("kind", "key", filling(3, 4))
    damage(entries()[0].path / name)
    assert stored("kind", "key", filling(3, 4)).arrays["numbers"].tolist() == [3, 4]
    stored("kind", "key", refuse)


def test_what_was_not_used_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(count: int) -> Callable[[Writer], None]:
        return lambda writer: writer.append("zeros", np.zeros(count, dtype=np.uint8))

    monkeypatch.setenv("PREFIXPROP_CACHE_GB", "0.00005")  # 50 kB
    for age, key in ((30, "a"), (20, "b")):
        stored("kind", key, zeros(20_000))
        for file in entries()[0].path.iterdir():
            os.utime(file, (file.stat().st_mtime - age,) * 2)
    held = stored("kind", "a", refuse)  # used again, so b goes first
    stored("kind", "c", zeros(20_000))
    assert len(entries()) == 2
    stored("kind", "a", refuse)
    with pytest.raises(AssertionError):
        stored("kind", "b", refuse)
    # One that is larger than the limit is kept for the run that needs it; what others have open stays readable.
    stored("kind", "d", zeros(99_000))
    assert [entry.size > 99_000 for entry in entries()] == [True]
    assert not held.arrays["zeros"].any()
    monkeypatch.setenv("PREFIXPROP_CACHE_GB", "much")
    with pytest.raises(ValueError, match="PREFIXPROP_CACHE_GB=much: the size of the cache must be a number"):
        stored("kind", "key", refuse)


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    append = Writer.append

    def full(self: Writer, name: str, values: Any) -> None:
        if self.folder is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, name, values)

    monkeypatch.setattr(Writer, "append", full)
    entry = stored("kind", "key", filling(3, 4))
    assert entry.arrays["numbers"].tolist() == [3, 4]
    assert entry.note is not None and "(No space left on device)" in entry.note


def test_clearing_removes_entries_and_leftovers_only(folder: Path) -> None:
    stored("kind", "key", filling(1))
    shutil.copytree(entries()[0].path, folder / ".prefixprop-tmp-killed")
    (folder / "mine").mkdir()
    (folder / "mine" / "letter.txt").write_text("kept")
    assert len(entries()) == 2
    clear()
    assert [path.name for path in folder.iterdir()] == ["mine"] and (folder / "mine" / "letter.txt").exists()


def test_the_usual_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PREFIXPROP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "prefixprop"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "prefixprop"
    assert entries() == []
    clear()  # nothing is there


def test_pieces_of_any_length() -> None:
    array = RaggedArray(np.arange(6), np.array([0, 2, 2, 6]))
    assert [piece.tolist() for piece in array] == [[0, 1], [], [2, 3, 4, 5]]
    assert array[-1].tolist() == [2, 3, 4, 5] and array.lengths.tolist() == [2, 0, 4]
    with pytest.raises(IndexError):
        array[3]

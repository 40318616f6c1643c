"""Whatever goes wrong while writing, the old content stays and no temporary file does."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from pathlib import Path

import pytest

from prefixprop.atomic_files import clear_leftovers, replacing_file, replacing_folder, write_json, write_text

from killed_runs import killed

posix_only = pytest.mark.skipif(os.name != "posix", reason="kills processes the POSIX way")


def die_at_rename(number: int) -> None:
    """From now on, `os.replace` kills this process when it is called for the `number`th time."""
    calls, replace = [], os.replace

    def dying(*names: Path) -> None:
        calls.append(names)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*names)

    os.replace = dying


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_text_and_json_are_written_as_they_are_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "note.txt"
    for text in ("naïve\nline\r\n", "second"):
        write_text(str(path), text)
        assert path.read_bytes() == text.encode()
    value = {"ece": 0.1 + 0.2, "name": "café", "half a pair": "\ud83d", "nested": [1, None, True, 5e-324]}
    write_json(path, value)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == value and "café" in text and text.endswith("}\n")
    assert names(path.parent) == ["note.txt"]


def test_what_json_cannot_hold_is_refused_before_writing(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"loss": float("nan")})
    assert path.read_text() == "old" and names(tmp_path) == ["value.json"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("old", ["old", None])
def test_full_disk_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, old: str | None
) -> None:
    path = tmp_path / "metrics.json"
    if old is not None:
        path.write_text(old)
    monkeypatch.setattr(os, failing, full_disk)
    with pytest.raises(OSError, match=r"No space left on device.*unchanged: .*metrics\.json") as caught:
        write_json(path, {"a": 1})
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == ([] if old is None else ["metrics.json"])
    assert old is None or path.read_text() == old


def test_errors_of_the_caller_pass_through_untouched(tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError, match="absent") as caught, replacing_file(path) as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".txt"
        temporary.write_text("half")
        (tmp_path / "absent").read_text()
    assert "unchanged" not in str(caught.value)
    with pytest.raises(KeyboardInterrupt), replacing_file(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and names(tmp_path) == ["kept.txt"]


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="folder is not a regular file"):
        write_text(tmp_path / "folder", "text")
    with pytest.raises(ValueError, match="not a regular file"):
        write_text(os.devnull, "text")
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="file"):
        write_text(tmp_path / "file" / "below.txt", "text")
    with pytest.raises(ValueError, match="file is a file"), replacing_folder(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file", "folder"]


@posix_only
def test_links_and_permissions_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


@pytest.mark.parametrize("old_files", [None, [], ["weights", "extra"]])
def test_a_folder_replaces_what_was_there(tmp_path: Path, old_files: list[str] | None) -> None:
    target = tmp_path / "deep" / "adapter"
    if old_files is not None:
        target.mkdir(parents=True)
        for name in old_files:
            (target / name).write_text("old")
    with replacing_folder(target) as temporary:
        (temporary / "weights").write_text("new")
        (temporary / "sub").mkdir()
        (temporary / "sub" / "config").write_text("new")
        assert target.exists() == (old_files is not None)
    assert names(target) == ["sub", "weights"]
    assert (target / "weights").read_text() == (target / "sub" / "config").read_text() == "new"
    assert names(target.parent) == ["adapter"]


@pytest.mark.parametrize("failing_rename", [1, 2])
def test_a_folder_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_rename: int
) -> None:
    target = tmp_path / "adapter"
    target.mkdir()
    (target / "weights").write_text("old")
    with pytest.raises(OSError, match=r"No space left on device.*unchanged"), replacing_folder(target) as temporary:
        (temporary / "weights").write_text("half")
        full_disk()

    real_replace, calls = os.replace, []

    def replace(source: Path, destination: Path) -> None:
        calls.append(destination)
        if len(calls) == failing_rename:
            full_disk()
        real_replace(source, destination)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="No space left on device"), replacing_folder(target) as temporary:
        (temporary / "weights").write_text("new")
    assert len(calls) >= failing_rename
    assert (target / "weights").read_text() == "old"
    assert names(tmp_path) == ["adapter"]


@posix_only
@pytest.mark.parametrize(("is_folder", "killed_at", "visible"), [(False, 1, True), (True, 1, True), (True, 2, False)])
def test_killed_while_it_moves_into_place(tmp_path: Path, is_folder: bool, killed_at: int, visible: bool) -> None:
    target = tmp_path / "run" / "adapter"
    file = target / "weights" if is_folder else target
    file.parent.mkdir(parents=True)
    file.write_text("old")

    def work() -> None:
        die_at_rename(killed_at)
        if not is_folder:
            write_text(target, "new")
        with replacing_folder(target) as temporary:
            (temporary / "weights").write_text("new")

    killed(work)
    assert target.exists() == visible
    assert len(names(target.parent)) == 2  # a killed process cannot tidy up
    clear_leftovers(tmp_path)
    assert file.read_text() == "old" and names(target.parent) == ["adapter"]


def test_a_folder_moved_aside_by_a_killed_process_goes_when_the_next_is_in_place(tmp_path: Path) -> None:
    aside = tmp_path / ".prefixprop-old-adapter"
    aside.mkdir()
    (aside / "weights").write_text("older")
    with replacing_folder(tmp_path / "adapter") as temporary:
        (temporary / "weights").write_text("new")
        assert aside.exists()
    assert names(tmp_path) == ["adapter"]

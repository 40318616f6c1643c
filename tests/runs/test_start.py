"""A run that replaces another one: the old one comes back unless the new one has trained a step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefixprop.runs.directory import REPLACED, check_may_start, discard_replaced, restore_replaced, start
from prefixprop.runs.find import find_runs
from prefixprop.train import RunDirectory, RunSettings

from tiny_runs import make_results

NEW = RunSettings(task="hyperpartisan", seed=2)


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    run = make_results(tmp_path / "run", seed=1)
    (run / "runs").mkdir()
    (run / "runs" / "events").write_text("what only the old run has")
    return RunDirectory(run)


def contents(directory: RunDirectory) -> dict[str, bytes]:
    files = [file for file in directory.path.rglob("*") if file.is_file() and file.name != ".prefixprop-lock"]
    return {str(file.relative_to(directory.path)): file.read_bytes() for file in files}


def begin(directory: RunDirectory) -> None:
    """What a new run has written before its first step."""
    start(directory, NEW, overwrite=True)
    (directory.path / "history.jsonl").write_text("")
    (directory.path / "checkpoints").mkdir()
    (directory.path / "checkpoints" / "state").write_text("new")


def kill_at(number: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> bool:
    """Do the work up to its `number`th rename or removal; False if it ends before that."""
    done = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                raise Killed
            return original(*arguments, **options)

        return replacement

    with monkeypatch.context() as patched:
        for module, name in ((os, "replace"), (shutil, "rmtree"), (Path, "unlink"), (Path, "rename")):
            patched.setattr(module, name, counted(getattr(module, name)))
        try:
            work()
        except Killed:
            return True
    return False


def test_the_old_run_comes_back(directory: RunDirectory) -> None:
    before = contents(directory)
    begin(directory)
    assert directory.read_settings().seed == 2 and not directory.is_finished()
    assert not find_runs([directory.path]).runs, "the old run is no result while it is replaced"
    assert restore_replaced(directory) and contents(directory) == before
    assert not restore_replaced(directory) and contents(directory) == before


@pytest.mark.parametrize("work", ["start", "restore"])
def test_whenever_it_is_killed_the_next_start_puts_the_old_run_back(
    work: str, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, number = contents(directory), 1
    while True:
        if work == "start":
            killed = kill_at(number, monkeypatch, lambda: begin(directory))
        else:
            begin(directory)
            killed = kill_at(number, monkeypatch, lambda: restore_replaced(directory))
        check_may_start(directory, resume=False, overwrite=True)
        assert contents(directory) == before, number
        if not killed:
            break
        number += 1
    assert number > 5


def test_half_a_removal_is_never_put_back(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(directory)
    assert kill_at(2, monkeypatch, lambda: discard_replaced(directory)), "the rename is the first"
    new = {name: content for name, content in contents(directory).items() if not name.startswith(".")}
    check_may_start(directory, resume=True, overwrite=False)
    start(directory, NEW, overwrite=False)
    discard_replaced(directory)
    assert contents(directory) == new and set(new) == {"config.yaml", "history.jsonl", "checkpoints/state"}
    assert not restore_replaced(directory)


def test_a_run_in_use_is_left_alone(directory: RunDirectory) -> None:
    begin(directory)
    during = contents(directory)
    with directory.claimed(), pytest.raises(ValueError, match="Another process is training"):
        check_may_start(directory, resume=False, overwrite=True)
    assert contents(directory) == during and (directory.path / REPLACED).is_dir()

"""Run directories: damage is noticed, one process trains at a time, and replaced runs come back if need be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prefixprop import load_run
from prefixprop.cli.app import app
from prefixprop.runs.directory import (
    REPLACED,
    FolderInUse,
    check_may_start,
    claim,
    discard_replaced,
    restore_replaced,
    start,
    wait_until_free,
)
from prefixprop.runs.find import find_runs
from prefixprop.train import RunDirectory, RunSettings, train

from tiny_runs import finish_again, make_results, make_run
from tiny_training import Notes, tiny_settings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made"), family="roberta")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def predict(run: Path) -> str | None:
    try:
        load_run(run)
    except ValueError as error:
        return str(error)
    return None


def report(run: Path) -> str | None:
    return next(iter(find_runs([run]).remarks), None)


def evaluate(run: Path) -> str | None:
    result = CliRunner().invoke(app, ["evaluate", "--predictions", str(run / "predictions" / "test.jsonl")])
    return result.stderr if result.exit_code else None


def _replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        text = (run / name).read_text(encoding="utf-8")
        assert old in text
        (run / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def _truncate(name: str) -> Callable[[Path], None]:
    return lambda run: os.truncate(run / name, (run / name).stat().st_size - 20)


def _remove(name: str) -> Callable[[Path], None]:
    return lambda run: os.remove(run / name)


ALL = (predict, report, evaluate)
CASES = [
    (_replace("metrics.json", '"temperature": ', '"temperature": 1'), "metrics.json is truncated or changed", ALL),
    (_truncate("metrics.json"), "metrics.json is truncated or changed", ALL),
    (_remove("manifest.json"), "manifest.json is missing", ALL),
    (_truncate("manifest.json"), "manifest.json is damaged", ALL),
    (_replace("labels.json", "art", "tax"), "labels.json is truncated or changed", ALL),
    (_remove("labels.json"), "labels.json is missing", ALL),
    (_truncate("environment.json"), "environment.json is truncated or changed", ALL),
    (_replace("config.yaml", "max_length: 32", "max_length: 16"), "config.yaml (settings) is truncated", ALL),
    (_truncate("predictions/test.jsonl"), "predictions/test.jsonl is truncated or changed", (report, evaluate)),
    (_replace("predictions/test.jsonl", '"d7"', '"d77"'), "predictions/test.jsonl is truncated", (report, evaluate)),
    (_remove("predictions/dev.jsonl"), "predictions/dev.jsonl is missing", (report, evaluate)),
    (_truncate("adapter/adapter_model.safetensors"), "adapter_model.safetensors is truncated or changed", (predict,)),
    (_remove("tokenizer/tokenizer_config.json"), "tokenizer/tokenizer_config.json is missing", (predict,)),
    (lambda run: (run / "tokenizer" / "added.json").touch(), "added.json is not in manifest.json", (predict,)),
    # What may change: models and data move, and people edit model cards.
    (_replace("config.yaml", "dev.jsonl", "moved.jsonl"), None, ALL),
    (lambda run: (run / "README.md").write_text("My best model."), None, ALL),
    (lambda run: (run / "adapter" / "README.md").write_text("My best adapter."), None, ALL),
]


@pytest.mark.parametrize(("damage", "message", "readers"), CASES)
def test_damage_is_noticed_by_whatever_reads_the_files(
    run: Path, damage: Callable[[Path], None], message: str | None, readers: tuple[Callable[[Path], str | None], ...]
) -> None:
    damage(run)
    for read in ALL:
        told = read(run)
        if message is None or read not in readers:
            assert told is None, read
        else:
            words = " ".join((told or "").split())
            assert message in words and "restore its files from a copy" in words and "--overwrite" in words, read


def test_the_fingerprint_tells_runs_apart_wherever_they_are(made: Path, run: Path) -> None:
    assert RunDirectory(run).fingerprint() == RunDirectory(made).fingerprint()
    finish_again(run, temperature=1.25)
    assert RunDirectory(run).fingerprint() != RunDirectory(made).fingerprint()


def test_a_trained_run_is_whole_and_a_damaged_one_can_be_trained_again(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, "roberta", method="head-only", epochs=1, num_virtual_tokens=None)
    run_dir = tmp_path / "run"
    train(settings, run_dir, progress=Notes())
    assert predict(run_dir) is None and report(run_dir) is None
    (run_dir / "metrics.json").write_text("{")
    with pytest.raises(ValueError, match=r"metrics\.json is truncated or changed"):
        train(settings, run_dir, resume=True)
    train(settings, run_dir, overwrite=True, progress=Notes())
    assert predict(run_dir) is None


HOLDER = """
import sys, time
from pathlib import Path
from prefixprop.runs.directory import claim
with claim(Path(sys.argv[1])):
    print("holding", flush=True)
    time.sleep(60)
"""


def test_a_claim_keeps_others_out_until_its_process_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "holding\n"
        with pytest.raises(FolderInUse, match=r"Another process is training in .*; wait for it"), claim(tmp_path):
            pass
        process.kill()
    for _ in range(2):
        with claim(tmp_path):
            pass


def test_waiting_ends_when_the_other_does(tmp_path: Path) -> None:
    told: list[str] = []
    wait_until_free(tmp_path, told.append)
    assert not told, "nobody to wait for"
    held = threading.Event()

    def hold() -> None:
        with claim(tmp_path):
            held.set()
            time.sleep(0.3)

    threading.Thread(target=hold).start()
    held.wait()
    wait_until_free(tmp_path, told.append)
    assert told == [f"Another process is training in {tmp_path}; waiting for it."]


# --- a run that replaces another one --------------------------------------------------------------------------------


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

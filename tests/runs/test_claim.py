"""Claims on a run directory: of this machine, of another one, of the dead and of those who only stood still."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from prefixprop.training import TrainingError, train
from prefixprop.training import claim as claims
from prefixprop.training.checkpoints import list_checkpoints
from prefixprop.runs.claim import LOCK, FolderInUse, claim, wait_until_free

from tiny_training import tiny_settings

HOLDER = """
import sys, time
from pathlib import Path
from prefixprop.runs.claim import claim
with claim(Path(sys.argv[1]), print):
    print("holding", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(claims, "SILENT_SECONDS", 0.6)
    monkeypatch.setattr(claims, "_LOOK_SECONDS", 0.1)


@pytest.fixture
def told() -> list[str]:
    return []


def leave_claim(folder: Path, beats: int = 1, machine: str = "another") -> None:
    record = {"token": "theirs", "machine": machine, "host": "node-7", "process": 123, "beats": f"{beats:012d}"}
    content = json.dumps(record).encode()
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
    os.write(descriptor, content)  # over the last one, as a holder does, so that no reader finds an empty file
    os.ftruncate(descriptor, len(content))
    os.close(descriptor)


def test_a_claim_is_seen_by_others_and_leaves_nothing(tmp_path: Path, told: list[str]) -> None:
    with claim(tmp_path, told.append) as held:
        held.check()
        with pytest.raises(FolderInUse, match=r"Another process is training in .* \(process \d+ on "):
            claim(tmp_path, told.append).__enter__()
    assert not list(tmp_path.iterdir()) and not told


def test_the_claim_of_a_killed_process_ends_with_it(tmp_path: Path, told: list[str]) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "holding\n"
        with pytest.raises(FolderInUse, match=f"process {process.pid} on "), claim(tmp_path, told.append):
            pass
        process.kill()
    assert (tmp_path / LOCK).exists()
    with claim(tmp_path, told.append) as held:
        held.check()
    assert not told, "on one machine there is nothing to wait for"


def test_a_silent_claim_of_another_machine_is_taken_over(tmp_path: Path, told: list[str]) -> None:
    leave_claim(tmp_path)
    started = time.monotonic()
    with claim(tmp_path, told.append) as held:
        held.check()
    assert time.monotonic() - started >= 0.6
    assert len(told) == 1 and "last claimed by process 123 on node-7" in told[0]


@pytest.mark.parametrize("lock", list(claims._Lock))
def test_a_counting_claim_of_another_machine_is_respected(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch, lock: claims._Lock
) -> None:
    # Whatever this machine's lock says: those of other machines may or may not be seen.
    monkeypatch.setattr(claims, "_lock", lambda _: lock)
    leave_claim(tmp_path)
    timer = threading.Timer(0.2, leave_claim, (tmp_path, 2))
    timer.start()
    with pytest.raises(FolderInUse, match="process 123 on node-7"), claim(tmp_path, told.append):
        pass
    timer.join()
    assert json.loads((tmp_path / LOCK).read_text())["token"] == "theirs"


def test_a_claim_that_another_machine_lets_go_of_is_free(tmp_path: Path, told: list[str]) -> None:
    leave_claim(tmp_path)
    timer = threading.Timer(0.2, os.truncate, (tmp_path / LOCK, 0))
    timer.start()
    with claim(tmp_path, told.append) as held:
        held.check()
    timer.join()
    assert len(told) == 1


def test_a_lock_that_outlives_its_machine(tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    leave_claim(tmp_path)
    orphan = (tmp_path / LOCK).stat().st_ino
    keep = (tmp_path / LOCK).open()  # so that the new file cannot have the number of the old one

    def server_keeps_the_old_lock(descriptor: int) -> claims._Lock:
        return claims._Lock.REFUSED if claims.os.fstat(descriptor).st_ino == orphan else claims._Lock.TAKEN

    monkeypatch.setattr(claims, "_lock", server_keeps_the_old_lock)
    with keep, claim(tmp_path, told.append) as held:
        held.check()
    assert len(told) == 1


def test_without_locks_counting_decides(tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_lock", lambda _: claims._Lock.UNSUPPORTED)
    with claim(tmp_path, told.append):
        assert not told, "an empty folder is nobody's"
        with pytest.raises(FolderInUse), claim(tmp_path, told.append):
            pass
    assert not (tmp_path / LOCK).exists()


def test_one_that_stood_still_leaves_the_run_to_the_other(tmp_path: Path, told: list[str]) -> None:
    with claim(tmp_path, told.append) as held:
        leave_claim(tmp_path)
        with pytest.raises(TrainingError, match="Another process has taken over"):
            held.check()
        time.sleep(0.2)
    assert json.loads((tmp_path / LOCK).read_text())["token"] == "theirs", "neither counted over nor removed"


def test_training_ends_where_another_has_taken_over(tmp_path: Path) -> None:
    class TakenOver(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                leave_claim(tmp_path / "run")

    settings = tiny_settings(tmp_path, epochs=2, checkpoint_every=1)
    with pytest.raises(TrainingError, match="Another process has taken over"):
        train(settings, tmp_path / "run", callbacks=[TakenOver()])
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1, "none of the step after"


def test_waiting_for_the_last_one_to_end(tmp_path: Path, told: list[str]) -> None:
    with claim(tmp_path, told.append):
        started = time.monotonic()
        wait_until_free(tmp_path, 0.3, told.append)
        assert time.monotonic() - started >= 0.3, "it is alive, so the waiting has an end"
    started = time.monotonic()
    wait_until_free(tmp_path, 60, told.append)
    assert time.monotonic() - started < 5

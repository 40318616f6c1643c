"""Claims on a run directory: one process at a time, and none that outlives its process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from prefixprop.runs.directory import FolderInUse, claim, wait_until_free

HOLDER = """
import sys, time
from pathlib import Path
from prefixprop.runs.directory import claim
with claim(Path(sys.argv[1])):
    print("holding", flush=True)
    time.sleep(60)
"""


def test_a_claim_keeps_others_out_until_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claim(folder), pytest.raises(FolderInUse, match=r"Another process is training in .*run; wait for it"):
        claim(folder).__enter__()
    with claim(folder):
        pass


def test_the_claim_of_a_killed_process_ends_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "holding\n"
        with pytest.raises(FolderInUse), claim(tmp_path):
            pass
        process.kill()
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

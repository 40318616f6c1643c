"""Runs that are killed by `kill -9`, and what has to come out of them when they are resumed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from prefixprop.runs.directory import LOCK
from prefixprop.train import RunResult

from tiny_training import comparable, history


class KillAt(TrainerCallback):
    """kill -9 at the end of a step, before its checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], Any]) -> None:
    """Do the work in another process, which must be killed by it."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def assert_same_end(resumed: RunResult, whole: RunResult) -> None:
    """Both runs ended in the same, in every file that is kept."""
    assert comparable(resumed.metrics) == comparable(whole.metrics)
    for file in ("predictions/dev.jsonl", "predictions/test.jsonl", "labels.json"):
        assert (resumed.run_dir / file).read_bytes() == (whole.run_dir / file).read_bytes(), file
    histories = [[line | {"seconds": None} for line in history(run.run_dir)] for run in (resumed, whole)]
    assert histories[0] == histories[1] and len(histories[0]) == whole.metrics["epochs"] >= 3
    hidden = {path.name for path in resumed.run_dir.rglob(".prefixprop-*")}
    assert hidden <= {LOCK}, "nothing half-written is left"

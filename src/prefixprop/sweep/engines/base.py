"""What computes the runs of a sweep: the same for one machine and for many."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prefixprop.progress import Progress
from prefixprop.runs.claim import FolderInUse, wait_until_free
from prefixprop.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from transformers import TrainerCallback


@dataclass(frozen=True)
class Job:
    """A run to compute, in its own directory; what it prints goes to `log`."""

    settings: RunSettings
    run_dir: Path
    log: Path


@dataclass(frozen=True)
class JobEnd:
    """A job that has ended; `error` is None if its run has finished."""

    job: Job
    error: str | None
    seconds: float


class Engine(Protocol):
    """Computes jobs, at most `slots` at once; a job that fails or is killed ends in a `JobEnd` like any other.

    An engine may call `run_job` anywhere, as long as the run directories end up where the jobs say.
    """

    @property
    def slots(self) -> int:
        """How many jobs may be under way at once, now."""

    def submit(self, job: Job) -> None:
        """Start a job; returns at once."""

    def collect(self, timeout: float) -> list[JobEnd]:
        """The jobs that have ended since the last call, each once; waits up to `timeout` seconds for the first."""

    def close(self) -> None:
        """Stop all running jobs; run directories keep their checkpoints."""


def run_job(job: Job, callbacks: Sequence[TrainerCallback] = ()) -> str | None:
    """Train in this process, from the latest checkpoint if there is one; returns the error, if any.

    Whatever a run raises is the end of this run only, so it is caught here, with the traceback in the log. A run that
    another process is training is waited for: it is no failure, and what it ends in counts here too.
    """
    from prefixprop.train.run import train

    try:
        while True:
            try:
                train(job.settings, job.run_dir, resume=True, progress=PrintedProgress(), callbacks=callbacks)
                return None
            except FolderInUse:
                wait_until_free(job.run_dir, PrintedProgress().note)
    except Exception as error:
        traceback.print_exc()
        expected = isinstance(error, (ValueError, RuntimeError)) and str(error)
        return str(error) if expected else f"{type(error).__name__}: {error}"


class PrintedProgress(Progress):
    """Notes and results as lines of a log."""

    def note(self, text: str) -> None:
        print(f"Note: {text}", flush=True)

    def line(self, text: str) -> None:
        print(text, flush=True)


def import_modules(modules: Sequence[str], folder: str) -> None:
    """Import the modules of `--import` in a process that computes; its own folder comes first."""
    if modules and folder not in sys.path:
        sys.path.insert(0, folder)
    for module in modules:
        importlib.import_module(module)


def write_output_to(log: Path) -> None:
    """From now on, append whatever this process and its libraries print to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)

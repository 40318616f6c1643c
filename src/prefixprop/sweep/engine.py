"""What computes the runs of a sweep: what every engine does, and the one that uses processes of this machine."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from prefixprop.processes import SECONDS_TO_STOP, STOPPING, handling_signals
from prefixprop.progress import PrintedProgress
from prefixprop.runs.directory import FolderInUse, wait_until_free
from prefixprop.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from transformers import TrainerCallback

# A server that has imported everything once forks a process in milliseconds. Unlike this process it has never used
# threads or a GPU, which do not survive a fork. Windows has none.
_START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_SECONDS_TO_END = 30  # for a process that has answered, and only has to free its memory


@dataclass(frozen=True)
class Job:
    """A run to compute, in its own directory; its output goes to `log`."""

    settings: RunSettings
    run_dir: Path
    log: Path


@dataclass(frozen=True)
class JobEnd:
    """A job that has ended; `error` is None if its run has finished."""

    job: Job
    error: str | None


class Engine(Protocol):
    """Computes jobs, at most `slots` at once; a job that fails or is killed ends in a `JobEnd` like any other.

    An engine may call `run_job` anywhere, as long as the run directories end up where the jobs say.
    """

    @property
    def slots(self) -> int:
        """How many jobs may run at once, now."""

    def submit(self, job: Job) -> None:
        """Start a job; returns at once."""

    def collect(self, timeout: float) -> list[JobEnd]:
        """The jobs that have ended since the last call, each once; waits up to `timeout` seconds for the first."""

    def close(self) -> None:
        """Stop all running jobs; run directories keep their checkpoints."""


def run_job(job: Job, callbacks: Sequence[TrainerCallback] = ()) -> str | None:
    """Train in this process, from the latest checkpoint if there is one; returns the error, if any.

    Whatever a run raises ends this run only, so it is caught here, and the log gets the traceback. If another process
    is training the run, it is waited for, and its result counts here too.
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


def run_in_worker(
    job: Job, modules: Sequence[str], threads: int | None, signals: Sequence[signal.Signals]
) -> str | None:
    """`run_job` in a process that only computes: one of the `signals` stops the run with a checkpoint.

    `modules` are those of `--import`; the current folder comes first when they are looked for.
    """
    import torch

    from prefixprop.train.callbacks import GracefulStop

    if threads is not None:
        torch.set_num_threads(threads)
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as error:
        traceback.print_exc()
        return f"The modules of --import cannot be imported ({error}); see {job.log}."
    stop = GracefulStop(PrintedProgress())
    with handling_signals(stop.ask, signals):
        return run_job(job, [stop])


def write_output_to(log: Path) -> None:
    """From now on, append whatever this process and its libraries print to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


@dataclass(frozen=True)
class _Running:
    job: Job
    process: BaseProcess
    answer: Connection
    slot: int


class LocalEngine:
    """Runs in up to `processes` processes; several may share a GPU, and several GPUs are assigned in turn.

    Args:
        processes: How many runs at once.
        modules: Modules that are imported first, such as one that registers a kernel.
        tell: Gets notes for the user while the runs are computed.
    """

    def __init__(
        self, processes: int = 1, modules: Sequence[str] = (), tell: Callable[[str], None] = lambda note: None
    ) -> None:
        self.slots = processes
        self._modules = tuple(modules)
        self._tell = tell
        self._running: list[_Running] = []
        self._context: Any = multiprocessing.get_context(_START_METHOD)
        if _START_METHOD == "forkserver":
            self._context.set_forkserver_preload(["prefixprop.sweep.engine", "prefixprop.train"])

    def submit(self, job: Job) -> None:
        slot = min(set(range(self.slots)) - {running.slot for running in self._running})
        # A single process leaves the number of threads to PyTorch.
        threads = None if self.slots == 1 else max(1, (os.cpu_count() or 1) // self.slots)
        answer, sender = self._context.Pipe(duplex=False)
        arguments = (job, sender, os.getcwd(), self._modules, threads, _device(slot))
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        sender.close()  # so that the connection closes when the process ends
        self._running.append(_Running(job, process, answer, slot))

    def collect(self, timeout: float) -> list[JobEnd]:
        # Connections are ready if they have an answer, or if their process died without one.
        ready = wait([running.answer for running in self._running], timeout)
        ended = [running for running in self._running if running.answer in ready]
        self._running = [running for running in self._running if running not in ended]
        return [JobEnd(running.job, _error(running)) for running in ended]

    def close(self) -> None:
        """Stop all running jobs, each with a checkpoint; an interrupt ends the waiting for them."""
        if self._running:
            self._tell(STOPPING)
        try:
            for running in self._running:
                running.process.terminate()
            deadline = time.monotonic() + SECONDS_TO_STOP
            for running in self._running:
                running.process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for running in self._running:
                running.process.kill()
                running.process.join()
            self._running = []


def _error(ended: _Running) -> str | None:
    try:
        answer: str | None = ended.answer.recv()
        is_dead = False
    except EOFError:
        answer, is_dead = None, True
    ended.answer.close()
    ended.process.join(_SECONDS_TO_END)
    ended.process.kill()
    ended.process.join()
    if not is_dead:
        return answer
    code = ended.process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    why = ", as happens when memory runs out" if code == -signal.SIGKILL else ""
    return f"The process {how}{why}; see {ended.job.log}."


def _device(slot: int) -> str | None:
    """The GPU of a slot, as CUDA_VISIBLE_DEVICES names it; None if there is nothing to choose."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return None
    names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return names.split(",")[slot % count]


def _work(
    job: Job, sender: Connection, folder: str, modules: Sequence[str], threads: int | None, device: str | None
) -> None:
    """What a process does; it resolves relative paths as the sweep does, from `folder`."""
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep, which then closes the engine
    threading.Thread(target=_end_with_parent, daemon=True).start()
    write_output_to(job.log)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    try:
        sender.send(run_in_worker(job, modules, threads, [signal.SIGTERM]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)


def _end_with_parent() -> None:
    """End with the sweep: if it is killed with -9 it cannot stop its runs, which would keep the next sweep out."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

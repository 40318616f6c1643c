"""Runs on this machine, each in its own process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from prefixprop.processes import SECONDS_TO_STOP, STOPPING, handling_signals
from prefixprop.sweep.engines.base import (
    Job,
    JobEnd,
    PrintedProgress,
    import_modules,
    run_job,
    write_output_to,
)

# A server that has imported everything once forks a process in milliseconds, and unlike this process it has never
# used threads or a GPU, which do not survive a fork. Windows has none.
_START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"

# A process that has answered only has to free its memory.
_SECONDS_TO_END = 30


@dataclass(frozen=True)
class _Running:
    job: Job
    process: BaseProcess
    answer: Connection
    started: float
    slot: int


class LocalEngine:
    """Runs in up to `processes` processes; several may share a GPU, and several GPUs are assigned in turn.

    Args:
        processes: How many runs at once.
        modules: Modules that are imported first, such as one that registers a kernel.
        tell: Gets notes for the user while the runs are computed.
    """

    def __init__(
        self,
        processes: int = 1,
        modules: Sequence[str] = (),
        tell: Callable[[str], None] = lambda note: None,
    ) -> None:
        if processes < 1:
            raise ValueError(f"--processes: must be at least 1, got {processes}.")
        self._processes = processes
        self._modules = tuple(modules)
        self._notify = tell
        self._running: list[_Running] = []
        self._context: Any = multiprocessing.get_context(_START_METHOD)
        if _START_METHOD == "forkserver":
            self._context.set_forkserver_preload(["prefixprop.sweep.engines.local", "prefixprop.train"])

    @property
    def slots(self) -> int:
        return self._processes

    def submit(self, job: Job) -> None:
        slot = min(set(range(self._processes)) - {running.slot for running in self._running})
        answer, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_work,
            args=(job, sender, os.getcwd(), self._modules, _threads(self._processes), _device(slot)),
            daemon=True,
        )
        process.start()
        sender.close()  # so that the connection closes when the process ends
        self._running.append(_Running(job, process, answer, time.monotonic(), slot))

    def collect(self, timeout: float) -> list[JobEnd]:
        # Ready are connections with an answer, and those whose process died without one.
        ready = wait([running.answer for running in self._running], timeout)
        ended = [running for running in self._running if running.answer in ready]
        self._running = [running for running in self._running if running not in ended]
        return [JobEnd(running.job, _error(running), time.monotonic() - running.started) for running in ended]

    def close(self) -> None:
        """Stop all running jobs, each with a checkpoint; an interrupt ends the waiting for them."""
        if self._running:
            self._notify(STOPPING)
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
    answer: str | None = None
    answered = True
    try:
        answer = ended.answer.recv()
    except EOFError:
        answered = False
    ended.answer.close()
    ended.process.join(_SECONDS_TO_END)
    if ended.process.is_alive():
        ended.process.kill()
        ended.process.join()
    return answer if answered else _death(ended)


def _death(ended: _Running) -> str:
    code = ended.process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    often = ", as the system does where memory is used up" if code == -signal.SIGKILL else ""
    return f"The process {how}{often}; see {ended.job.log}."


def _threads(processes: int) -> int | None:
    """Threads per process; None, PyTorch's own choice, for a single one."""
    return None if processes == 1 else max(1, (os.cpu_count() or 1) // processes)


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
    import torch

    from prefixprop.train.callbacks import GracefulStop

    if threads is not None:
        torch.set_num_threads(threads)
    import_modules(modules, folder)
    stop = GracefulStop(PrintedProgress())
    try:
        with handling_signals(stop.ask):
            sender.send(run_job(job, [stop]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)


def _end_with_parent() -> None:
    """A sweep killed with -9 cannot stop its runs, and a run left alone would keep the next sweep out."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

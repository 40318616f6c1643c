"""Runs as tasks of a Ray cluster, whose nodes share the file system of the run directories.

Ray carries a `Job` to a node and a line of text back; checkpoints and results go through the run directory. So a run
whose node dies continues on another node, from its last checkpoint. This engine alone decides which node computes a
run, and gives it to another only after Ray has reported that its worker or node died: other machines may not see the
lock on a run directory (`prefixprop.runs.claim`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefixprop.optional_packages import import_optional
from prefixprop.processes import SECONDS_TO_STOP, STOPPING, handling_signals
from prefixprop.runs.directory import RunDirectory
from prefixprop.sweep.engines.base import Job, JobEnd, PrintedProgress, import_modules, run_job, write_output_to

_SECONDS_TO_ANSWER = 10
_SMALLEST_SHARE = 0.01
# Runs go through files, so that Ray itself has next to nothing to store; its default is a third of the memory.
_OBJECT_STORE_BYTES = 100 * 2**20


@dataclass(frozen=True)
class Resources:
    """What a run takes of a node: whole CPUs, and a GPU, a share of one, or none."""

    cpus_per_run: int
    gpus_per_run: float | None

    def __post_init__(self) -> None:
        if self.cpus_per_run < 1:
            raise ValueError(f"--cpus-per-run: must be at least 1, got {self.cpus_per_run}.")
        share = self.gpus_per_run
        if share and not _SMALLEST_SHARE <= share <= 1:
            raise ValueError(
                f"--gpus-per-run: must be 0, or from {_SMALLEST_SHARE:g} to 1, got {share:g}; a run computes on one "
                "GPU, and with 0.5 two runs share one."
            )

    @property
    def gpus_of_run(self) -> float:
        return self.gpus_per_run or 0.0

    def resolved(self, nodes: Sequence[dict[str, float]]) -> Resources:
        """The same with a number of GPUs, which the cluster decides if it was not given."""
        if self.gpus_per_run is not None:
            return self
        return replace(self, gpus_per_run=1.0 if any(node.get("GPU", 0) for node in nodes) else 0.0)

    def room(self, nodes: Sequence[dict[str, float]]) -> int:
        """How many runs the nodes have room for at once, if nobody else uses them."""
        return sum(self._room_on(node) for node in nodes)

    def check_room(self, nodes: Sequence[dict[str, float]]) -> None:
        """Raise if no node has what a run needs: it would wait forever."""
        if self.room(nodes):
            return
        problems = []
        if all(node.get("CPU", 0) < self.cpus_per_run for node in nodes):
            problems.append(f"--cpus-per-run: no node has {self.cpus_per_run} CPUs")
        if all(node.get("GPU", 0) < self.gpus_of_run for node in nodes):
            problems.append(f"--gpus-per-run: no node has {self.gpus_of_run:g} GPUs")
        both = f"no node has {self.cpus_per_run} CPUs and {self.gpus_of_run:g} GPUs together"
        has = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise ValueError(f"{'; '.join(problems) or both}. The nodes of the cluster have: {has or 'nothing'}.")

    def _room_on(self, node: dict[str, float]) -> int:
        room = int(node.get("CPU", 0) // self.cpus_per_run)
        if self.gpus_of_run:
            # A share is of one GPU: two of 0.6 do not fit on one, and what is left of two is no third. The product
            # with a share such as 0.1 may come out a little below the whole number it is.
            room = min(room, int(node.get("GPU", 0)) * math.floor(1 / self.gpus_of_run + 1e-6))
        return room


def connect(address: str | None) -> Any:
    """The package ray, connected to the cluster at `address`, or to a new one on this machine."""
    ray = import_optional("ray", "Sweeps with --engine ray", extra="ray")
    if ray.is_initialized():
        raise RuntimeError("This process already uses a Ray cluster; call ray.shutdown() first.")
    if address is not None and address != "auto":
        _check_answers(address)
    start: dict[str, Any] = (
        {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        if address is None
        else {"address": address}
    )
    _let_ray_speak(ray, False)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **start)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        disconnect(ray)
        where = "on this machine" if address in (None, "auto") else f"at {address}"
        raise RuntimeError(f"--ray-address: there is no Ray cluster {where} to be used: {error}") from error
    return ray


def disconnect(ray: Any) -> None:
    ray.shutdown()
    _let_ray_speak(ray, True)


def _check_answers(address: str) -> None:
    """Raise if nothing listens at the address: Ray would wait a quarter of an hour for it."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"--ray-address: expected HOST:PORT, as `ray start --head` prints it, or auto, got {address!r}. The "
            "sweep itself has to run on a node of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise RuntimeError(
            f"--ray-address: there is no Ray cluster at {address} ({error.strerror or error}); start one with "
            "`ray start --head`, or leave the option out to use this machine alone."
        ) from error


def _let_ray_speak(ray: Any, allowed: bool) -> None:
    """Ray prints pages about every dead node into the progress table, and only its own debugger may stop that."""
    ray._private.worker._worker_logs_enabled = allowed


# A killed worker is gone at once, one whose node lost its connection ends when it notices.
_SECONDS_TO_END = 30
_SECONDS_WITHOUT_ROOM = 300


@dataclass(frozen=True)
class _Running:
    job: Job
    answer: Any  # Ray's reference to it
    started: float
    attempt: int


class RayEngine:
    """Runs on the nodes of a Ray cluster, as many as their CPUs and GPUs have room for at the time.

    Deaths of workers and nodes are counted here and not by Ray (`max_retries`), because Ray's tasks do not know that
    they are a second attempt, and because Ray repeats one that used up the memory without end.

    Args:
        address: `host:port` of the cluster, or `auto` for the one on this machine; without it one is started here.
        cpus_per_run: CPUs that a run takes; it computes with as many threads.
        gpus_per_run: The share of a GPU that a run takes: with 0.25, four share one. None is one GPU if the cluster
            has any.
        modules: Modules that are imported first, such as one that registers a kernel.
        retries: How often a run is started again after its worker or node died.
        tell: Gets notes for the user while the runs are computed.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus_per_run: int = 1,
        gpus_per_run: float | None = None,
        modules: Sequence[str] = (),
        retries: int = 3,
        tell: Callable[[str], None] = lambda note: None,
    ) -> None:
        resources = Resources(cpus_per_run, gpus_per_run)
        self._ray = connect(address)
        try:
            self._resources = resources.resolved(self._nodes())
            self._resources.check_room(self._nodes())
        except BaseException:
            disconnect(self._ray)
            raise
        self._modules = tuple(modules)
        self._retries = retries
        self._notify = tell
        self._task = self._ray.remote(num_cpus=cpus_per_run, num_gpus=self._resources.gpus_of_run, max_retries=0)(
            _work
        )
        self._running: list[_Running] = []
        self._had_room = time.monotonic()

    @property
    def slots(self) -> int:
        return max(1, self._resources.room(self._nodes()))

    def submit(self, job: Job) -> None:
        self._start(_Running(job, None, time.monotonic(), attempt=1))

    def collect(self, timeout: float) -> list[JobEnd]:
        if not self._running:
            return []
        self._check_room()
        answers = [running.answer for running in self._running]
        self._ray.wait(answers, timeout=timeout)
        ready, _ = self._ray.wait(answers, num_returns=len(answers), timeout=0)
        ended = [running for running in self._running if running.answer in ready]
        self._running = [running for running in self._running if running not in ended]
        return [end for running in ended if (end := self._end(running)) is not None]

    def close(self) -> None:
        """Stop all running jobs, each with a checkpoint; an interrupt ends the waiting for them."""
        answers = [running.answer for running in self._running]
        try:
            if answers:
                self._notify(STOPPING)
                self._cancel(answers, SECONDS_TO_STOP)
        finally:
            self._cancel(answers, _SECONDS_TO_END, force=True)
            self._running = []
            disconnect(self._ray)

    def _cancel(self, answers: Sequence[Any], seconds: float, force: bool = False) -> None:
        """Interrupt runs, or kill their workers, and wait until they end."""
        # Ray aborts this process if a task is cancelled while its answer arrives (task_manager.cc: "Tried to complete
        # task that was not pending"), so those that have ended are left alone.
        running = self._unanswered(answers, 0)
        for answer in running:
            self._ray.cancel(answer, force=force)
        self._unanswered(running, seconds)

    def _unanswered(self, answers: Sequence[Any], seconds: float) -> list[Any]:
        """The runs that have not ended after so many seconds."""
        return self._ray.wait(answers, num_returns=len(answers), timeout=seconds)[1] if answers else []

    def _start(self, running: _Running) -> None:
        threads = self._resources.cpus_per_run
        answer = self._task.remote(running.job, os.getcwd(), self._modules, threads, running.attempt)
        self._running.append(replace(running, answer=answer))

    def _end(self, running: _Running) -> JobEnd | None:
        """How a run has ended; None if it is started again."""
        errors = self._ray.exceptions
        try:
            error = self._ray.get(running.answer)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as death:
            if running.attempt <= self._retries:
                self._start(replace(running, attempt=running.attempt + 1))
                return None
            error = _death(death, errors, running)
        except errors.RayError as problem:
            error = f"Ray could not compute the run ({_last_line(problem)}); see {running.job.log}."
        if error is None and not _has_results(running.job):
            error = (
                f"The run has ended, but {running.job.run_dir} has no results here: put --runs-dir on a file system "
                "that all nodes share, under the same path."
            )
        return JobEnd(running.job, error, time.monotonic() - running.started)

    def _nodes(self) -> list[dict[str, float]]:
        """The resources of each live node."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _check_room(self) -> None:
        """Raise if the resources of the runs have been gone for long; replacing a node takes a while."""
        nodes = self._nodes()
        if self._resources.room(nodes):
            self._had_room = time.monotonic()
        elif time.monotonic() - self._had_room > _SECONDS_WITHOUT_ROOM:
            self._resources.check_room(nodes)


def _death(death: Exception, errors: Any, running: _Running) -> str:
    if isinstance(death, errors.OutOfMemoryError):
        cause = "Ray stopped its worker because the node's memory was used up"
    elif isinstance(death, errors.NodeDiedError):
        cause = "its node died"
    else:
        cause = "its worker was killed, as the system does where memory is used up"
    times = "once" if running.attempt == 1 else f"{running.attempt} times"
    return f"The run was started {times}, and the last time {cause}; see {running.job.log}."


def _last_line(problem: Exception) -> str:
    return str(problem).strip().splitlines()[-1] if str(problem).strip() else type(problem).__name__


def _has_results(job: Job) -> bool:
    # Listing a folder makes network file systems forget that a file was missing before.
    with contextlib.suppress(OSError):
        os.listdir(job.run_dir)
    return RunDirectory(job.run_dir).is_finished()


def _work(job: Job, folder: str, modules: Sequence[str], threads: int, attempt: int) -> str | None:
    """A task: calls `run_job` in a worker that resolves relative paths as the sweep does, from `folder`."""
    try:
        os.chdir(folder)
    except OSError as error:
        return (
            f"{folder} cannot be entered on {platform.node()} ({error.strerror}); start the sweep in a folder of a "
            "file system that all nodes share, under the same path."
        )
    with _output_in(job.log):
        node = _ray_node()
        print(f"Attempt {attempt}, process {os.getpid()} on {platform.node()}, node {node}.", flush=True)
        import torch

        from prefixprop.train.callbacks import GracefulStop

        torch.set_num_threads(threads)
        try:
            import_modules(modules, folder)
        except Exception as error:
            traceback.print_exc()
            return f"The modules of --import cannot be imported on {platform.node()} ({error})."
        stop = GracefulStop(PrintedProgress())
        # Ray interrupts a cancelled run as Ctrl-C would; Ray itself handles SIGTERM.
        with handling_signals(stop.ask, [signal.SIGINT]):
            return run_job(job, [stop])


def _ray_node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


@contextlib.contextmanager
def _output_in(log: Path) -> Iterator[None]:
    """Print to `log`, and afterwards where Ray wants it again: a worker computes several runs in turn."""
    before = [os.dup(descriptor) for descriptor in (1, 2)]
    write_output_to(log)
    try:
        yield
    finally:
        for descriptor, copy in zip((1, 2), before, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)

"""Runs as tasks of a Ray cluster, whose nodes share the file system of the run directories.

Ray carries a `Job` to a node and a line of text back; checkpoints and results go through the run directory. So a run
whose node dies continues on another node, from its last checkpoint. This engine alone decides which node computes a
run, and moves it to another only after Ray has reported that its worker or node died: other machines may not see the
lock on a run directory (`prefixprop.runs.directory`).
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prefixprop.processes import SECONDS_TO_STOP, STOPPING
from prefixprop.ray_connection import connect, disconnect, live_nodes
from prefixprop.runs.directory import RunDirectory
from prefixprop.sweep.engine import Job, JobEnd, run_in_worker, write_output_to

_SECONDS_TO_END = 30  # a killed worker ends at once, one whose node lost its connection when it notices
_RETRIES = 3  # how often a run is started again after its worker or node died

Node = dict[str, float]  # the resources of a node


def room(nodes: Sequence[Node], cpus: int, gpus: float) -> int:
    """How many runs the nodes have room for at once, if nobody else uses them."""
    runs = [int(node.get("CPU", 0) // cpus) for node in nodes]
    if gpus:
        # A share is of one GPU: two shares of 0.6 do not fit on one, and the rests of two GPUs do not add up. 1 / 0.1
        # may come out a little below 10.
        sharing = math.floor(1 / gpus + 1e-6)
        runs = [min(count, int(node.get("GPU", 0)) * sharing) for count, node in zip(runs, nodes, strict=True)]
    return sum(runs)


@dataclass(frozen=True)
class _Running:
    job: Job
    answer: Any  # Ray's reference to it
    attempt: int


class RayEngine:
    """Runs on the nodes of a Ray cluster, as many as their CPUs and GPUs have room for at the time.

    Deaths of workers and nodes are counted here and not by Ray (`max_retries`): Ray's tasks do not know which attempt
    they are, and Ray endlessly repeats one that ran out of memory.

    Args:
        address: `host:port` of the cluster, or `auto` for the one on this machine; without it one is started here.
        cpus_per_run: CPUs that a run takes; it computes with as many threads.
        gpus_per_run: The share of a GPU that a run takes: with 0.25, four share one. None is one GPU if the cluster
            has any.
        modules: Modules that are imported first, such as one that registers a kernel.
        tell: Gets notes for the user while the runs are computed.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus_per_run: int = 1,
        gpus_per_run: float | None = None,
        modules: Sequence[str] = (),
        tell: Callable[[str], None] = lambda note: None,
    ) -> None:
        self._ray = connect(address, "Sweeps with --engine ray")
        try:
            if gpus_per_run is None:
                gpus_per_run = 1.0 if any(node.get("GPU", 0) for node in live_nodes(self._ray)) else 0.0
            self._cpus, self._gpus = cpus_per_run, gpus_per_run
            nodes = live_nodes(self._ray)
            if not room(nodes, cpus_per_run, gpus_per_run):  # it would wait forever
                has = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
                raise ValueError(
                    f"--cpus-per-run, --gpus-per-run: no node has {cpus_per_run} CPUs and {gpus_per_run:g} GPUs, "
                    f"which a run needs. The nodes of the cluster have: {has or 'nothing'}."
                )
        except BaseException:
            disconnect(self._ray)
            raise
        self._modules = tuple(modules)
        self._tell = tell
        self._task = self._ray.remote(num_cpus=cpus_per_run, num_gpus=gpus_per_run, max_retries=0)(_work)
        self._running: list[_Running] = []

    @property
    def slots(self) -> int:
        return max(1, room(live_nodes(self._ray), self._cpus, self._gpus))

    def submit(self, job: Job, attempt: int = 1) -> None:
        answer = self._task.remote(job, os.getcwd(), self._modules, self._cpus, attempt)
        self._running.append(_Running(job, answer, attempt))

    def collect(self, timeout: float) -> list[JobEnd]:
        if not self._running:
            return []
        answers = [running.answer for running in self._running]
        self._ray.wait(answers, timeout=timeout)
        ready, _ = self._ray.wait(answers, num_returns=len(answers), timeout=0)
        ended = [running for running in self._running if running.answer in ready]
        self._running = [running for running in self._running if running not in ended]
        return [end for running in ended if (end := self._end(running)) is not None]

    def _end(self, running: _Running) -> JobEnd | None:
        """How a run has ended; None if it is started again."""
        job, errors = running.job, self._ray.exceptions
        try:
            error = self._ray.get(running.answer)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as death:
            if running.attempt <= _RETRIES:
                self.submit(job, running.attempt + 1)
                return None
            killed = "its worker was killed, as happens when memory runs out"
            cause = "its node died" if isinstance(death, errors.NodeDiedError) else killed
            error = f"The run was started {running.attempt} times, and the last time {cause}; see {job.log}."
        except errors.RayError as problem:
            last_line = (str(problem).strip() or type(problem).__name__).splitlines()[-1]
            error = f"Ray could not compute the run ({last_line}); see {job.log}."
        # Listing a folder makes network file systems forget that a file was missing before.
        with contextlib.suppress(OSError):
            os.listdir(job.run_dir)
        if error is None and not RunDirectory(job.run_dir).is_finished():
            error = (
                f"The run has ended, but {job.run_dir} has no results here: put --runs-dir on a file system that all "
                "nodes share, under the same path."
            )
        return JobEnd(job, error)

    def close(self) -> None:
        """Stop all running jobs, each with a checkpoint; an interrupt ends the waiting for them."""
        answers = [running.answer for running in self._running]
        try:
            if answers:
                self._tell(STOPPING)
                self._cancel(answers, SECONDS_TO_STOP)
        finally:
            self._cancel(answers, _SECONDS_TO_END, force=True)
            self._running = []
            disconnect(self._ray)

    def _cancel(self, answers: Sequence[Any], seconds: float, force: bool = False) -> None:
        """Interrupt runs, or kill their workers, and wait until they end."""
        if not answers:
            return
        # Ray aborts this process if a task is cancelled while its answer arrives (task_manager.cc: "Tried to complete
        # task that was not pending"), so those that have ended are left alone.
        _, running = self._ray.wait(answers, num_returns=len(answers), timeout=0)
        for answer in running:
            self._ray.cancel(answer, force=force)
        self._ray.wait(answers, num_returns=len(answers), timeout=seconds)


def _work(job: Job, folder: str, modules: Sequence[str], threads: int, attempt: int) -> str | None:
    """A task; its worker resolves relative paths as the sweep does, from `folder`."""
    import ray

    try:
        os.chdir(folder)
    except OSError as error:
        return (
            f"{folder} cannot be entered on {platform.node()} ({error.strerror}); start the sweep in a folder of a "
            "file system that all nodes share, under the same path."
        )
    write_output_to(job.log)
    node = ray.get_runtime_context().get_node_id()
    print(f"Attempt {attempt}, process {os.getpid()} on {platform.node()}, node {node}.", flush=True)
    # Ray interrupts a cancelled run as Ctrl-C would; Ray itself handles SIGTERM.
    return run_in_worker(job, modules, threads, [signal.SIGINT])

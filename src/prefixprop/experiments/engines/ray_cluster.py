"""Runs as tasks of a Ray cluster, whose nodes share the file system that run directories lie on.

Ray carries a `Job` to a node and a line of text back; checkpoints and results go through the run directory. So a run
whose node dies goes on, on another node, from its last checkpoint. This engine alone decides which node computes a
run, and gives a run to another only after Ray has told that its worker or node died: the lock on a run directory
(`prefixprop.runs.claim`) may not be seen by other machines.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefixprop.experiments.engines.base import Job, JobEnd, import_modules, run_job, tell_in_log, write_output_to
from prefixprop.experiments.engines.ray_connection import Resources, connect, disconnect
from prefixprop.runs.directory import RunDirectory
from prefixprop.signals import SECONDS_TO_STOP, STOPPING, asked_by_signals

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

    Deaths of workers and nodes are counted here and not by Ray (`max_retries`), which does not tell a task that it is
    a second attempt, and which repeats one that used up the memory without end.

    Args:
        address: `host:port` of the cluster, or `auto` for the one on this machine; without it one is started here.
        cpus_per_run: CPUs that a run takes; it computes with as many threads.
        gpus_per_run: The share of a GPU that a run takes: of 0.25, four share one. None is one GPU where the cluster
            has any.
        modules: Modules that are imported first, such as one that registers a kernel.
        retries: How often a run is taken up again whose worker or node died.
        tell: Gets what a user should know while he waits.
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
        self._tell = tell
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
        """Stop what is under way, with a checkpoint each; whoever interrupts this does not wait for them."""
        answers = [running.answer for running in self._running]
        try:
            if answers:
                self._tell(STOPPING)
                self._cancel(answers, SECONDS_TO_STOP)
        finally:
            if answers:
                self._cancel(answers, _SECONDS_TO_END, force=True)
            self._running = []
            disconnect(self._ray)

    def _cancel(self, answers: Sequence[Any], seconds: float, force: bool = False) -> None:
        """Interrupt runs, or kill their workers, and wait for the end; nothing happens to those that have ended."""
        for answer in answers:
            self._ray.cancel(answer, force=force)
        self._ray.wait(answers, num_returns=len(answers), timeout=seconds)

    def _start(self, running: _Running) -> None:
        threads = self._resources.cpus_per_run
        answer = self._task.remote(running.job, os.getcwd(), self._modules, threads, running.attempt)
        self._running.append(replace(running, answer=answer))

    def _end(self, running: _Running) -> JobEnd | None:
        """How a run has ended; None where it is taken up again."""
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
        """What each node has that is there now."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _check_room(self) -> None:
        """Raise if what the runs need has been gone for long; nodes that are replaced take a while to come."""
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
    return f"The run was begun {times}, and at the last {cause}; see {running.job.log}."


def _last_line(problem: Exception) -> str:
    return str(problem).strip().splitlines()[-1] if str(problem).strip() else type(problem).__name__


def _has_results(job: Job) -> bool:
    # Listing a folder makes network file systems forget that a file in it was not there before.
    with contextlib.suppress(OSError):
        os.listdir(job.run_dir)
    return RunDirectory(job.run_dir).is_finished()


def _work(job: Job, folder: str, modules: Sequence[str], threads: int, attempt: int) -> str | None:
    """A task: what `run_job` answers, in a worker that sees relative paths as the sweep does, from `folder`."""
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

        from prefixprop.training.stopping import StopWatch

        torch.set_num_threads(threads)
        try:
            import_modules(modules, folder)
        except Exception as error:
            traceback.print_exc()
            return f"The modules of --import cannot be imported on {platform.node()} ({error})."
        stop = StopWatch(tell_in_log)
        # Ray interrupts a run that is cancelled as Ctrl-C would; what SIGTERM does to a worker is Ray's affair.
        with asked_by_signals(stop.ask, [signal.SIGINT]):
            return run_job(job, [stop])


def _ray_node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


@contextlib.contextmanager
def _output_in(log: Path) -> Iterator[None]:
    """Print to `log`, and afterwards to where Ray wants it: its workers compute one run after the other."""
    before = [os.dup(descriptor) for descriptor in (1, 2)]
    write_output_to(log)
    try:
        yield
    finally:
        for descriptor, copy in zip((1, 2), before, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)

"""What computes the runs of a sweep: processes of this machine, or the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
import platform
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

from prefixprop.progress import SECONDS_TO_STOP, STOPPING, PrintedProgress, handling_signals
from prefixprop.ray_connection import connect, disconnect, live_nodes
from prefixprop.runs.directory import FolderInUse, RunDirectory, wait_until_free
from prefixprop.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from transformers import TrainerCallback

# A server that has imported everything once forks a process in milliseconds. Unlike this process it has never used
# threads or a GPU, which do not survive a fork. Windows has none.
_START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
# For a process that has answered and only has to free its memory, or a worker that was killed: it ends at once, one
# whose node lost its connection when it notices.
_SECONDS_TO_END = 30
_RETRIES = 3  # how often a run on Ray is started again after its worker or node died


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

    from prefixprop.train.trainer import GracefulStop

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
class _LocalRun:
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
        self._running: list[_LocalRun] = []
        self._context: Any = multiprocessing.get_context(_START_METHOD)
        if _START_METHOD == "forkserver":
            self._context.set_forkserver_preload(["prefixprop.sweep.engine", "prefixprop.train"])

    def submit(self, job: Job) -> None:
        slot = min(set(range(self.slots)) - {running.slot for running in self._running})
        # A single process leaves the number of threads to PyTorch.
        threads = None if self.slots == 1 else max(1, (os.cpu_count() or 1) // self.slots)
        answer, sender = self._context.Pipe(duplex=False)
        arguments = (job, sender, os.getcwd(), self._modules, threads, _device(slot))
        process = self._context.Process(target=_work_here, args=arguments, daemon=True)
        process.start()
        sender.close()  # so that the connection closes when the process ends
        self._running.append(_LocalRun(job, process, answer, slot))

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


def _error(ended: _LocalRun) -> str | None:
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


def _work_here(
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


# --- Ray ------------------------------------------------------------------------------------------------------------

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
class _RayRun:
    job: Job
    answer: Any  # Ray's reference to it
    attempt: int


class RayEngine:
    """Runs on the nodes of a Ray cluster, as many as their CPUs and GPUs have room for at the time.

    Ray carries a `Job` to a node and a line of text back; checkpoints and results go through the run directory, on a
    file system that all nodes share. So a run whose node dies continues on another node, from its last checkpoint.
    This engine alone decides which node computes a run, and moves it to another only after Ray has reported that its
    worker or node died: other machines may not see the lock on a run directory (`prefixprop.runs.directory`).

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
        self._task = self._ray.remote(num_cpus=cpus_per_run, num_gpus=gpus_per_run, max_retries=0)(_work_on_node)
        self._running: list[_RayRun] = []

    @property
    def slots(self) -> int:
        return max(1, room(live_nodes(self._ray), self._cpus, self._gpus))

    def submit(self, job: Job, attempt: int = 1) -> None:
        answer = self._task.remote(job, os.getcwd(), self._modules, self._cpus, attempt)
        self._running.append(_RayRun(job, answer, attempt))

    def collect(self, timeout: float) -> list[JobEnd]:
        if not self._running:
            return []
        answers = [running.answer for running in self._running]
        self._ray.wait(answers, timeout=timeout)
        ready, _ = self._ray.wait(answers, num_returns=len(answers), timeout=0)
        ended = [running for running in self._running if running.answer in ready]
        self._running = [running for running in self._running if running not in ended]
        return [end for running in ended if (end := self._end(running)) is not None]

    def _end(self, running: _RayRun) -> JobEnd | None:
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


def _work_on_node(job: Job, folder: str, modules: Sequence[str], threads: int, attempt: int) -> str | None:
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

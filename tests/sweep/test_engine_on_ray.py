"""Sweeps on a real Ray cluster of two nodes on this machine, one of which is killed; clusters of no use."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefixprop.progress import STOPPING
from prefixprop.runs.directory import claim
from prefixprop.sweep import Job, RayEngine, SweepState, read_plan, run_sweep
from prefixprop.sweep import engine as engines
from prefixprop.train import RunDirectory, train
from prefixprop.train.recovery import list_checkpoints

from tiny_training import comparable, write_plan

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed")

SOURCES = Path(engines.__file__).parents[2]
STORE = 80 * 2**20

# A run on the node that is to die stands still after its first checkpoint; any run tells from where it goes on.
STALLING = """
import time
from pathlib import Path
import ray
from prefixprop.train.trainer import RunTrainer

save, train = RunTrainer._save_checkpoint, RunTrainer.train

def save_and_stall(self, *arguments, **named):
    save(self, *arguments, **named)
    while Path("victim").read_text() == ray.get_runtime_context().get_node_id():
        time.sleep(0.05)

def train_and_tell(self, resume_from_checkpoint=None):
    print(f"goes on from {resume_from_checkpoint}", flush=True)
    return train(self, resume_from_checkpoint=resume_from_checkpoint)

RunTrainer._save_checkpoint, RunTrainer.train = save_and_stall, train_and_tell
"""

# What becomes of a worker that imports this is decided by a file.
MOODY = """
import os, signal
from pathlib import Path
mood = Path("mood").read_text()
if mood == "deadly":
    os.kill(os.getpid(), signal.SIGKILL)
if mood == "mistaken":
    import no_such_module
"""


@pytest.fixture(scope="module", autouse=True)
def environment_of_workers() -> Iterator[None]:
    # They have to find this very package, wherever they start.
    paths = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # by default they give way to other tests, for minutes
        yield


@pytest.fixture(scope="module")
def cluster(environment_of_workers: None) -> Iterator[Any]:
    head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "object_store_memory": STORE}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def second_node(cluster: Any) -> Iterator[Any]:
    node = cluster.add_node(num_cpus=1, num_gpus=0, object_store_memory=STORE)
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


class KillsANode:
    """Kills the second node with its worker, as a power cut does, once a run there has a checkpoint."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.cluster, self.node = cluster, node
        self.hit: Job | None = None
        self.deadline = time.monotonic() + 300

    def __call__(self, state: SweepState) -> None:
        assert time.monotonic() < self.deadline, "the sweep does not end"
        if self.hit is None:
            self.hit = next((job for job in state.running.values() if self._stalls(job)), None)
            if self.hit is not None:
                self.cluster.remove_node(self.node, allow_graceful=False)
                (process,) = re.findall(r"process (\d+) on", self.hit.log.read_text())
                os.kill(int(process), signal.SIGKILL)

    def _stalls(self, job: Job) -> bool:
        saved = list_checkpoints(RunDirectory(job.run_dir).checkpoints)
        return bool(saved) and self.node.node_id in job.log.read_text()


def test_a_killed_node_loses_nothing(
    cluster: Any,
    second_node: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "stalling.py").write_text(STALLING)
    (tmp_path / "victim").write_text(second_node.node_id)
    monkeypatch.chdir(tmp_path)
    plan = read_plan(write_plan(tmp_path, seed=[1, 2], checkpoint_every=1))
    killer = KillsANode(cluster, second_node)
    engine = RayEngine(cluster.address, modules=["stalling"])
    assert engine.slots == 2
    capfd.readouterr()
    state = run_sweep(plan, Path("on-ray"), engine, killer)
    printed = capfd.readouterr()
    assert killer.hit is not None, "the node was to be killed in the middle"
    assert not state.failures and len(state.outcomes) == plan.size == 2
    assert not printed.out and "raylet" not in printed.err, "Ray keeps out of what the sweep prints"

    first, _, second = killer.hit.log.read_text().partition("Attempt 2, ")
    assert second_node.node_id in first and "goes on from None" in first
    assert second and second_node.node_id not in second and "step-00000001" in second.partition("goes on from ")[2]

    for name, outcome in state.outcomes.items():
        alone = train(outcome.settings, Path("alone", name))
        assert comparable(RunDirectory(Path("on-ray", name)).read_metrics()) == comparable(alone.metrics)
        assert outcome.score == alone.metrics["dev"]["micro_f1"]


def test_room_that_nobody_has(cluster: Any) -> None:
    with pytest.raises(ValueError, match=r"no node has 64 CPUs and 0 GPUs, which .* have: .*1 CPUs and 0 GPUs"):
        RayEngine(cluster.address, cpus_per_run=64)
    with pytest.raises(ValueError, match=r"no node has 1 CPUs and 0\.5 GPUs"):
        RayEngine(cluster.address, gpus_per_run=0.5)
    handler = signal.getsignal(signal.SIGTERM)
    assert not str(getattr(handler, "__module__", "")).startswith("ray."), "Ray leaves nothing behind"


def test_errors_and_deaths_are_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a run may end in, on a Ray of this machine, once started: new workers take their time to begin."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moody.py").write_text(MOODY)
    settings = read_plan(write_plan(tmp_path)).cells[0].settings
    endless = read_plan(write_plan(tmp_path, epochs=1000)).cells[0].settings
    job = Job(settings, Path("run"), Path("logs", "run.log"))
    told: list[str] = []
    monkeypatch.setattr(engines, "_RETRIES", 0)
    engine = RayEngine(gpus_per_run=0, modules=["moody"], tell=told.append)
    assert engine.slots == os.cpu_count()

    def answer(mood: str) -> str:
        (tmp_path / "mood").write_text(mood)
        engine.submit(job)
        (end,) = engine.collect(300)
        return end.error or "none"

    try:
        death = answer("deadly")
        assert "started 1 times, and the last time its worker was killed" in death and "run.log" in death
        mistake = answer("mistaken")
        assert "modules of --import cannot be imported" in mistake and "no_such_module" in mistake
        with monkeypatch.context() as patch:
            patch.setattr(engines, "RunDirectory", lambda path: RunDirectory(tmp_path / "not-shared"))
            lost = answer("calm")
        assert "has no results here: put --runs-dir on a file system that all nodes share" in lost
        assert answer("calm") == "none" and RunDirectory(job.run_dir).is_finished()

        (tmp_path / "dev.jsonl").write_text('{"id": "a", "text": "w5"}\n')
        job = Job(settings, Path("other"), Path("logs", "other.log"))
        assert "dev.jsonl:1: there is no column 'label'" in answer("calm")
        log = (tmp_path / "logs" / "other.log").read_text()
        assert log.startswith("Attempt 1, ") and "Traceback" in log

        (tmp_path / "dev.jsonl").unlink()
        write_plan(tmp_path)
        unfinished = RunDirectory(tmp_path / "endless")
        engine.submit(Job(endless, unfinished.path, tmp_path / "endless.log"))
        deadline = time.monotonic() + 60
        while not list_checkpoints(unfinished.checkpoints):
            assert time.monotonic() < deadline and not engine.collect(0.1)
    finally:
        engine.close()
    with claim(unfinished.path):  # nobody trains there any more
        assert list_checkpoints(unfinished.checkpoints) and not unfinished.is_finished()
    assert told == [STOPPING]
    assert "Note: Stopping after this step, with a checkpoint." in (tmp_path / "endless.log").read_text()


@pytest.mark.parametrize(
    ("cpus", "gpus", "nodes", "room"),
    [
        (1, 0, [{"CPU": 4.0}, {"CPU": 2.0}], 6),
        (2, 0, [{"CPU": 3.0}, {"CPU": 1.0}], 1),
        (1, 1, [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0}], 2),
        (1, 0.1, [{"CPU": 64.0, "GPU": 1.0}], 10),
        (1, 0.4, [{"CPU": 64.0, "GPU": 4.0}], 8),
        (4, 0.25, [{"CPU": 8.0, "GPU": 1.0}], 2),
        (4, 1, [{"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}], 0),
    ],
)
def test_room(cpus: int, gpus: float, nodes: list[dict[str, float]], room: int) -> None:
    assert engines.room(nodes, cpus, gpus) == room


@pytest.mark.parametrize("address", ["ray://head:1", "head", ":0"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="--ray-address: expected HOST:PORT"):
        RayEngine(address)


def test_nobody_at_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening
        port = unused.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"no Ray cluster at 127.0.0.1:{port} .*ray start --head"):
            RayEngine(f"127.0.0.1:{port}")

"""Sweeps on a real Ray cluster of two nodes on this machine, one of which is killed in the middle."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefixprop.experiments import (
    Job,
    JobEnd,
    LocalEngine,
    RayEngine,
    SweepState,
    read_plan,
    run_sweep,
)
from prefixprop.experiments.engines import ray_cluster
from prefixprop.training import RunDirectory
from prefixprop.training.checkpoints import list_checkpoints
from prefixprop.training.claim import claim

from tiny_training import comparable, write_plan

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed")

SOURCES = Path(ray_cluster.__file__).parents[3]
STORE = 80 * 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    # Workers have to find this very package, wherever they start.
    paths = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "object_store_memory": STORE}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture
def second_node(cluster: Any) -> Iterator[Any]:
    node = cluster.add_node(num_cpus=1, num_gpus=0, object_store_memory=STORE)
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


class KillsANode:
    """Kills the second node once a run on it has a checkpoint, and remembers which run and which checkpoint."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.cluster, self.node = cluster, node
        self.hit: Job | None = None
        self.checkpoint_time = 0
        self.deadline = time.monotonic() + 120

    def __call__(self, state: SweepState) -> None:
        assert time.monotonic() < self.deadline, "the sweep does not end"
        if self.hit is not None:
            return
        for job in state.running.values():
            checkpoints = list_checkpoints(RunDirectory(job.run_dir).checkpoints)
            if (
                checkpoints
                and not RunDirectory(job.run_dir).is_finished()
                and self.node.node_id in job.log.read_text()
            ):
                self.hit, self.checkpoint_time = job, first_written(checkpoints)
                self.cluster.remove_node(self.node, allow_graceful=False)
                return


def first_written(checkpoints: Any) -> int:
    return min(path.stat().st_mtime_ns for path in checkpoints)


def finish(engine: RayEngine, seconds: float = 60) -> JobEnd:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for end in engine.collect(1):
            return end
    raise AssertionError("the run does not end")


def test_a_killed_node_loses_nothing(
    cluster: Any, second_node: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_plan(
        tmp_path,
        method=["prefix-propagation", "prefix-tuning"],
        learning_rate=[1e-2, 1e-3],
        seed=[1, 2, 3],
        epochs=2,
        keep_checkpoints=True,
        checkpoint_every=1,
    )
    plan, killer = read_plan(path), KillsANode(cluster, second_node)
    engine = RayEngine(cluster.address)
    assert engine.slots == 2
    capfd.readouterr()
    state = run_sweep(plan, tmp_path / "on-ray", engine, killer)
    printed = capfd.readouterr()
    assert killer.hit is not None, "the node was to be killed in the middle"
    assert not state.failures and len(state.outcomes) == plan.size == 12
    assert "raylet" not in printed.out + printed.err, "the progress table is for progress"

    log = killer.hit.log.read_text()
    first, _, second = log.partition("Attempt 2, ")
    assert second_node.node_id in first and second and second_node.node_id not in second
    kept = list_checkpoints(RunDirectory(killer.hit.run_dir).checkpoints)
    assert first_written(kept) == killer.checkpoint_time, "it went on from where it was"

    local = run_sweep(plan, tmp_path / "local", LocalEngine(processes=2))
    assert {name: outcome.score for name, outcome in local.outcomes.items()} == {
        name: outcome.score for name, outcome in state.outcomes.items()
    }
    for name in local.outcomes:
        here, there = (RunDirectory(tmp_path / folder / name) for folder in ("local", "on-ray"))
        assert comparable(here.read_metrics()) == comparable(there.read_metrics())


def test_errors_and_deaths_are_answers(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    (tmp_path / "mistaken.py").write_text("import no_such_module\n")
    monkeypatch.chdir(tmp_path)
    cell = read_plan(write_plan(tmp_path)).cells[0]
    (tmp_path / "dev.jsonl").write_text('{"id": "a", "text": "w5"}\n')
    job = Job(cell.settings, Path("run"), Path("logs", "run.log"))
    errors = []
    for modules in ([], ["deadly"], ["mistaken"]):
        engine = RayEngine(cluster.address, modules=modules, retries=1)
        try:
            engine.submit(job)
            errors.append(finish(engine).error or "")
        finally:
            engine.close()
    assert "dev.jsonl:1: there is no column 'label'" in errors[0]
    assert "begun 2 times, and at the last its worker was killed" in errors[1] and "run.log" in errors[1]
    assert "modules of --import cannot be imported" in errors[2] and "no_such_module" in errors[2]
    log = (tmp_path / "logs" / "run.log").read_text()
    assert "Traceback" in log and "Attempt 2, " in log


def test_closing_stops_what_is_under_way(cluster: Any, tmp_path: Path) -> None:
    cell = read_plan(write_plan(tmp_path, epochs=1000)).cells[0]
    run_dir = RunDirectory(tmp_path / "run")
    engine = RayEngine(cluster.address)
    engine.submit(Job(cell.settings, run_dir.path, tmp_path / "log"))
    deadline = time.monotonic() + 60
    while not list_checkpoints(run_dir.checkpoints):
        assert time.monotonic() < deadline and not engine.collect(0.1)
    engine.close()
    checkpoints = list_checkpoints(run_dir.checkpoints)
    with claim(run_dir.path, pytest.fail):  # nobody trains there any more
        time.sleep(0.5)
    assert list_checkpoints(run_dir.checkpoints) == checkpoints and not run_dir.is_finished()


def test_results_that_do_not_reach_this_machine(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = read_plan(write_plan(tmp_path)).cells[0]
    engine = RayEngine(cluster.address)
    try:
        engine.submit(Job(cell.settings, tmp_path / "run", tmp_path / "log"))
        monkeypatch.setattr(ray_cluster, "RunDirectory", lambda path: RunDirectory(tmp_path / "not-shared"))
        error = finish(engine).error
    finally:
        engine.close()
    assert error is not None and "has no results here: put --runs-dir on a file system that all nodes share" in error


def test_room_that_nobody_has(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"--cpus-per-run: no node has 64 CPUs\. .* have: 1 CPUs and 0 GPUs\."):
        RayEngine(cluster.address, cpus_per_run=64)
    with pytest.raises(ValueError, match=r"--gpus-per-run: no node has 0\.5 GPUs"):
        RayEngine(cluster.address, gpus_per_run=0.5)
    # Nodes may also go during the sweep.
    monkeypatch.setattr(ray_cluster, "_SECONDS_WITHOUT_ROOM", 0)
    engine = RayEngine(cluster.address)
    try:
        monkeypatch.setattr(engine, "_nodes", lambda: [{"CPU": 0.0}])
        assert engine.slots == 1
        engine.submit(Job(read_plan(write_plan(tmp_path)).cells[0].settings, tmp_path / "run", tmp_path / "log"))
        with pytest.raises(ValueError, match="no node has 1 CPUs"):
            engine.collect(0.1)
    finally:
        engine.close()

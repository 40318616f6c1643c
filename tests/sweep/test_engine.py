"""Tiny runs with the local engine: folds, errors, deaths, stopping, and runs that another process trains."""

from __future__ import annotations

import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

from prefixprop.sweep import Job, LocalEngine, read_plan, run_job, run_sweep
from prefixprop.train import RunDirectory, train
from prefixprop.train.recovery import list_checkpoints

from tiny_training import comparable, write_plan


def test_a_search_by_folds_on_real_runs(tmp_path: Path) -> None:
    search = {"learning_rate": [1e-2, 1e-3], "search": "learning_rate", "cross_validation": {"folds": 2}}
    path = write_plan(tmp_path, num_virtual_tokens=None, method="head-only", keep="last", **search)
    plan, runs = read_plan(path), tmp_path / "runs"
    state = run_sweep(plan, runs, LocalEngine(processes=2))
    assert not state.failures and len(state.outcomes) == plan.size == 5
    (cell,) = state.summary()["cells"]
    for candidate in cell["candidates"]:
        folds = [state.outcomes[name].score for name in candidate["runs"]]
        assert len(folds) == 2 and candidate["mean"] == pytest.approx(sum(folds) / 2)
    (final,) = cell["final_runs"]
    assert sum((runs / name / "predictions" / "test.jsonl").exists() for name in state.outcomes) == 1
    # A run of a sweep is the run that `train` makes of the same settings.
    alone = train(state.outcomes[final].settings, tmp_path / "alone").metrics
    assert comparable(RunDirectory(runs / final).read_metrics()) == comparable(alone)
    assert state.outcomes[final].score == alone["dev"]["micro_f1"] and alone["test"]["documents"] == 8


def test_local_engine_reports_errors_and_deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.chdir(tmp_path)
    cell = read_plan(write_plan(tmp_path)).cells[0]
    job = Job(cell.settings, Path("run"), Path("logs", "run.log"))
    (tmp_path / "dev.jsonl").write_text('{"id": "a", "text": "w5"}\n')
    ends = []
    for engine in (LocalEngine(), LocalEngine(modules=["deadly"])):
        engine.submit(job)
        ends += engine.collect(120)
        engine.close()
    error, death = (end.error for end in ends)
    assert error is not None and "dev.jsonl:1: there is no column 'label'" in error
    assert death is not None and "was killed by signal 9" in death and "run.log" in death
    assert "Traceback" in (tmp_path / "logs" / "run.log").read_text()


def test_local_engine_stops_runs_with_a_checkpoint(tmp_path: Path) -> None:
    settings = read_plan(write_plan(tmp_path, epochs=2000, checkpoint_seconds=1e6)).cells[0].settings
    job, told = Job(settings, tmp_path / "run", tmp_path / "run.log"), []
    engine = LocalEngine(tell=told.append)
    engine.submit(job)
    deadline = time.monotonic() + 90
    while not RunDirectory(job.run_dir).history.exists():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    assert not list_checkpoints(job.run_dir / "checkpoints"), "none is due"
    engine.close()
    assert len(list_checkpoints(job.run_dir / "checkpoints")) == 1
    assert "Stopping after this step" in job.log.read_text() and told[0].startswith("Stopping, with a checkpoint")


def test_a_run_that_another_process_trains_is_waited_for(tmp_path: Path) -> None:
    settings = read_plan(write_plan(tmp_path)).cells[0].settings
    job = Job(settings, tmp_path / "run", tmp_path / "log")
    ends: list[str | None] = []
    waiting = threading.Thread(target=lambda: ends.append(run_job(job)))
    with RunDirectory(job.run_dir).claimed():
        waiting.start()
        waiting.join(2)
        assert waiting.is_alive() and not ends
    waiting.join()
    assert ends == [None] and RunDirectory(job.run_dir).is_finished()


def test_bugs_end_one_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    # The package has a function of the same name as its module.
    monkeypatch.setattr(import_module("prefixprop.train.run"), "train", broken)
    settings = read_plan(write_plan(tmp_path)).cells[0].settings
    assert run_job(Job(settings, tmp_path / "run", tmp_path / "log")) == "KeyError: 'oops'"

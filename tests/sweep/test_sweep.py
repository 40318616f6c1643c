"""Sweeps of tiny runs with the local engine, and the books of a sweep with an engine that only pretends."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from prefixprop.cli.sweep_tables import progress_table, result_table
from prefixprop.sweep import (
    Job,
    JobEnd,
    LocalEngine,
    SweepState,
    read_plan,
    run_job,
    run_name,
    run_sweep,
    settle_finished,
)
from prefixprop.train import RunDirectory, settings_to_yaml, train
from prefixprop.train.checkpoints import list_checkpoints

from tiny_training import comparable, write_plan


class Pretending:
    """Ends every job at once, with the score of its learning rate; some rates fail."""

    def __init__(self, scores: dict[float, float], slots: int = 2) -> None:
        self.scores, self.slots = scores, slots
        self.submitted: list[Job] = []
        self.under_way: list[Job] = []
        self.most_at_once = 0
        self.closed = False

    def submit(self, job: Job) -> None:
        self.submitted.append(job)
        self.under_way.append(job)
        self.most_at_once = max(self.most_at_once, len(self.under_way))

    def collect(self, timeout: float) -> list[JobEnd]:
        job = self.under_way.pop(0)
        rate = job.settings.learning_rate
        assert rate is not None
        if rate not in self.scores:
            return [JobEnd(job, "The loss is nan.", 1.0)]
        job.run_dir.mkdir(parents=True)
        score = self.scores[rate] + job.settings.seed / 1000
        metrics = {"dev": {"micro_f1": score}, "seconds": 10.0, "status": "finished"}
        (job.run_dir / "config.yaml").write_text(settings_to_yaml(job.settings))
        RunDirectory(job.run_dir).finish(metrics)
        return [JobEnd(job, None, 10.0)]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    return write_plan(tmp_path, learning_rate=[1e-2, 1e-3, 5e-4], seed=[1, 2, 3], search="learning_rate")


def test_search_then_seeds(tmp_path: Path, searched: Path) -> None:
    engine = Pretending({1e-2: 0.5, 1e-3: 0.8, 5e-4: 0.7})
    state = run_sweep(read_plan(searched), tmp_path / "runs", engine)
    asked = [(job.settings.learning_rate, job.settings.seed) for job in engine.submitted]
    assert asked == [(1e-2, 1), (1e-3, 1), (5e-4, 1), (1e-3, 2), (1e-3, 3)]
    assert engine.most_at_once == 2 and engine.closed and not state.failures
    (cell,) = json.loads((tmp_path / "runs" / "sweep.json").read_text())["cells"]
    assert cell["chosen"] == {"learning_rate": 1e-3} and len(cell["runs"]) == 5 and cell["remaining"] == 0
    assert cell["final_runs"] == [run_name(engine.submitted[place].settings) for place in (1, 3, 4)]


def test_a_stopped_sweep_notes_what_it_has(tmp_path: Path, searched: Path) -> None:
    def interrupt(state: SweepState) -> None:
        if len(state.outcomes) == 4:
            raise KeyboardInterrupt

    engine = Pretending({1e-2: 0.5, 1e-3: 0.8, 5e-4: 0.7}, slots=1)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(read_plan(searched), tmp_path / "runs", engine, interrupt)
    (cell,) = json.loads((tmp_path / "runs" / "sweep.json").read_text())["cells"]
    assert engine.closed and cell["chosen"] == {"learning_rate": 1e-3}
    assert len(cell["runs"]) == 4 and cell["remaining"] == 1


def test_finished_runs_are_never_repeated(tmp_path: Path, searched: Path) -> None:
    plan, scores = read_plan(searched), {1e-2: 0.5, 1e-3: 0.8, 5e-4: 0.7}
    run_sweep(plan, tmp_path / "runs", Pretending(scores))
    again = Pretending(scores)
    state = run_sweep(plan, tmp_path / "runs", again)
    assert not again.submitted and len(state.outcomes) == 5
    assert not any(outcome.is_new for outcome in state.outcomes.values())


def test_a_failing_run_stops_nothing_and_is_tried_again(tmp_path: Path, searched: Path) -> None:
    plan = read_plan(searched)
    state = run_sweep(plan, tmp_path / "runs", Pretending({1e-2: 0.5, 5e-4: 0.7}))
    (failure,) = state.failures
    assert failure.settings.learning_rate == 1e-3 and failure.error == "The loss is nan."
    summary = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    assert summary["failed"] == {failure.run_dir.name: "The loss is nan."}
    assert summary["cells"][0]["chosen"] == {"learning_rate": 5e-4}
    # This time it succeeds, is chosen, and gets seeds of its own.
    again = Pretending({1e-3: 0.9})
    run_sweep(plan, tmp_path / "runs", again)
    assert [(job.settings.learning_rate, job.settings.seed) for job in again.submitted] == [
        (1e-3, 1),
        (1e-3, 2),
        (1e-3, 3),
    ]


def test_a_search_in_which_all_fail_ends(tmp_path: Path, searched: Path) -> None:
    plan = read_plan(searched)
    state = run_sweep(plan, tmp_path / "runs", Pretending({}))
    assert len(state.failures) == 3 and state.progress(plan.cells[0]).stuck and state.remaining(plan.cells[0]) == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"dev": ', "metrics.json is truncated or changed"), (None, "no micro_f1 of dev; remove the file")],
)
def test_broken_metrics_are_a_failure(tmp_path: Path, searched: Path, content: str | None, words: str) -> None:
    plan = read_plan(searched)
    broken = tmp_path / "runs" / run_name(plan.cells[0].settings)
    broken.mkdir(parents=True)
    (broken / "config.yaml").write_text(settings_to_yaml(plan.cells[0].settings))
    RunDirectory(broken).finish({"dev": {}})
    if content is not None:
        (broken / "metrics.json").write_text(content)
    state = SweepState(plan, tmp_path / "runs")
    settle_finished(state)
    (failure,) = state.failures
    assert failure.error is not None and words in failure.error and str(broken) in failure.error


def test_time_left(tmp_path: Path, searched: Path) -> None:
    plan = read_plan(searched)
    times: list[float | None] = []
    engine = Pretending({1e-2: 0.5, 1e-3: 0.8, 5e-4: 0.7}, slots=1)
    run_sweep(plan, tmp_path / "runs", engine, lambda state: times.append(state.seconds_left(1)))
    assert times == [None, 40.0, 30.0, 20.0, 10.0, 0.0]


def test_candidates_are_judged_by_folds(tmp_path: Path) -> None:
    path = write_plan(
        tmp_path,
        learning_rate=[1e-2, 1e-3, 5e-4],
        seed=[4, 5],
        search="learning_rate",
        cross_validation={"folds": 3, "seeds": [1, 2]},
    )
    engine = Pretending({1e-2: 0.5, 1e-3: 0.8}, slots=3)
    plan = read_plan(path)
    state = run_sweep(plan, tmp_path / "runs", engine)
    asked = [job.settings for job in engine.submitted]
    assert len(asked) == plan.size == 3 * 3 * 2 + 2
    judged = [(run.learning_rate, run.seed, run.folds, run.fold) for run in asked[:18]]
    assert judged == [(rate, seed, 3, fold) for rate in (1e-2, 1e-3, 5e-4) for seed in (1, 2) for fold in (0, 1, 2)]
    assert [(run.learning_rate, run.seed, run.folds, run.fold) for run in asked[18:]] == [
        (1e-3, 4, None, None),
        (1e-3, 5, None, None),
    ]
    (cell,) = json.loads((tmp_path / "runs" / "sweep.json").read_text())["cells"]
    assert cell["chosen"] == {"learning_rate": 1e-3} and cell["remaining"] == 0 and len(state.failures) == 6
    shared = {"setting": "learning_rate", "runs": 6}
    assert cell["candidates"] == [
        shared | {"value": 1e-2, "mean": pytest.approx(0.5015), "finished": 6, "failed": 0},
        shared | {"value": 1e-3, "mean": pytest.approx(0.8015), "finished": 6, "failed": 0},
        shared | {"value": 5e-4, "mean": None, "finished": 0, "failed": 6},
    ]
    progress = _text(progress_table(state, 1))
    assert "0.8015" in progress and "0.8050" not in progress, "the best mean, not the best run"
    results = _text(result_table(state))
    assert "learning_rate 0.001" in results and "out, as runs failed: learning_rate=0.0005" in results


def _text(table: Table) -> str:
    console = Console(width=200, file=io.StringIO(), color_system=None)
    console.print(table)
    return console.file.getvalue()


def test_real_folds(tmp_path: Path) -> None:
    path = write_plan(
        tmp_path,
        num_virtual_tokens=None,
        method="head-only",
        learning_rate=[1e-2, 1e-3],
        keep="last",
        search="learning_rate",
        cross_validation={"folds": 2},
    )
    plan, runs = read_plan(path), tmp_path / "runs"
    state = run_sweep(plan, runs, LocalEngine(processes=2))
    assert not state.failures and len(state.outcomes) == plan.size == 5
    (cell,) = state.summary()["cells"]
    for candidate in cell["candidates"]:
        folds = [
            outcome.score
            for outcome in state.outcomes.values()
            if outcome.settings.learning_rate == candidate["value"] and outcome.settings.folds == 2
        ]
        assert len(folds) == candidate["finished"] == 2 and candidate["mean"] == pytest.approx(sum(folds) / 2)
    (final,) = cell["final_runs"]
    metrics = RunDirectory(runs / final).read_metrics()
    assert metrics["dev"]["documents"] == 10 and metrics["test"]["documents"] == 8
    assert sum((runs / name / "predictions" / "test.jsonl").exists() for name in state.outcomes) == 1


def test_two_methods_two_seeds(tmp_path: Path) -> None:
    path = write_plan(tmp_path, method=["prefix-propagation", "prefix-tuning"], seed=[1, 2])
    plan, runs = read_plan(path), tmp_path / "runs"
    state = run_sweep(plan, runs, LocalEngine(processes=2))
    assert not state.failures and len(state.outcomes) == plan.size == 4
    assert sum(RunDirectory(folder).is_finished() for folder in runs.iterdir()) == 4
    # A run of a sweep is the run that `train` makes of the same settings.
    name, outcome = next(iter(state.outcomes.items()))
    alone = train(outcome.settings, tmp_path / "alone")
    assert comparable(RunDirectory(runs / name).read_metrics()) == comparable(alone.metrics)
    assert outcome.score == alone.metrics["dev"]["micro_f1"]


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


def test_runs_with_other_documents_are_not_compared(tmp_path: Path) -> None:
    plan = read_plan(write_plan(tmp_path, seed=[1, 2]))
    first = plan.cells[0].settings
    runs = tmp_path / "runs"
    train(first, runs / run_name(first))
    file = Path(first.train_files[0])
    before = file.read_text()
    file.write_text(before.replace("w5", "w6"))
    engine = Pretending({})
    with pytest.raises(ValueError, match="finished run with other documents than there are now"):
        run_sweep(plan, runs, engine)
    assert engine.closed and not engine.submitted
    file.write_text(before)
    state = SweepState(plan, runs)
    settle_finished(state)
    assert list(state.outcomes) == [run_name(first)]


def test_a_folder_that_cannot_be_made(tmp_path: Path, searched: Path) -> None:
    (tmp_path / "file").write_text("x")
    engine = Pretending({})
    with pytest.raises(OSError):
        run_sweep(read_plan(searched), tmp_path / "file" / "runs", engine)
    assert not engine.submitted


def test_bugs_end_one_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    # The package has a function of the same name as its module.
    monkeypatch.setattr(import_module("prefixprop.train.train"), "train", broken)
    settings = read_plan(write_plan(tmp_path)).cells[0].settings
    assert run_job(Job(settings, tmp_path / "run", tmp_path / "log")) == "KeyError: 'oops'"


def test_number_of_processes() -> None:
    with pytest.raises(ValueError, match="--processes: must be at least 1, got 0"):
        LocalEngine(0)
    assert LocalEngine(os.cpu_count() or 1).slots >= 1

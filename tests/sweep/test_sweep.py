"""The records of a sweep, with an engine that only pretends to compute."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from prefixprop.cli.sweep import result_table
from prefixprop.sweep import Job, JobEnd, SweepState, read_plan, run_name, run_sweep, settle_finished
from prefixprop.train import RunDirectory, settings_to_yaml, train

from tiny_training import write_plan


class Pretending:
    """Ends every job at once, with the score of its learning rate; those without a score fail."""

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
            return [JobEnd(job, "The loss is nan.")]
        job.run_dir.mkdir(parents=True)
        score = self.scores[rate] + job.settings.seed / 1000
        metrics = {"dev": {"micro_f1": score}, "seconds": 10.0, "status": "finished"}
        (job.run_dir / "config.yaml").write_text(settings_to_yaml(job.settings))
        RunDirectory(job.run_dir).finish(metrics)
        return [JobEnd(job, None)]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    return write_plan(tmp_path, learning_rate=[1e-2, 1e-3, 5e-4], seed=[1, 2, 3], search="learning_rate")


def test_search_then_seeds_and_never_again(tmp_path: Path, searched: Path) -> None:
    plan, scores = read_plan(searched), {1e-2: 0.5, 1e-3: 0.8, 5e-4: 0.7}
    engine, times = Pretending(scores), []
    state = run_sweep(plan, tmp_path / "runs", engine, lambda state: times.append(state.seconds_left(1)))
    asked = [(job.settings.learning_rate, job.settings.seed) for job in engine.submitted]
    assert asked == [(1e-2, 1), (1e-3, 1), (5e-4, 1), (1e-3, 2), (1e-3, 3)]
    assert engine.most_at_once == 2 and engine.closed and not state.failures
    assert times == [None, 40.0, 30.0, 20.0, 10.0, 0.0]
    (cell,) = json.loads((tmp_path / "runs" / "sweep.json").read_text())["cells"]
    assert cell["chosen"] == {"learning_rate": 1e-3} and len(cell["runs"]) == 5 and cell["remaining"] == 0
    assert cell["final_runs"] == [run_name(engine.submitted[place].settings) for place in (1, 3, 4)]

    again = Pretending(scores)
    state = run_sweep(plan, tmp_path / "runs", again)
    assert not again.submitted and len(state.outcomes) == 5
    assert not any(outcome.is_new for outcome in state.outcomes.values())


def test_an_interrupted_sweep_writes_what_it_has(tmp_path: Path, searched: Path) -> None:
    def interrupt(state: SweepState) -> None:
        if len(state.outcomes) == 4:
            raise KeyboardInterrupt

    engine = Pretending({1e-2: 0.5, 1e-3: 0.8, 5e-4: 0.7}, slots=1)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(read_plan(searched), tmp_path / "runs", engine, interrupt)
    (cell,) = json.loads((tmp_path / "runs" / "sweep.json").read_text())["cells"]
    assert engine.closed and cell["chosen"] == {"learning_rate": 1e-3}
    assert len(cell["runs"]) == 4 and cell["remaining"] == 1


def test_a_failing_run_stops_nothing_and_is_tried_again(tmp_path: Path, searched: Path) -> None:
    plan = read_plan(searched)
    state = run_sweep(plan, tmp_path / "runs", Pretending({}))
    assert len(state.failures) == 3 and state.progress(plan.cells[0]).stuck and state.remaining(plan.cells[0]) == 0
    state = run_sweep(plan, tmp_path / "runs", Pretending({1e-2: 0.5, 5e-4: 0.7}))
    (failure,) = state.failures
    assert failure.settings.learning_rate == 1e-3 and failure.error == "The loss is nan."
    summary = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    assert summary["failed"] == {failure.run_dir.name: "The loss is nan."}
    assert summary["cells"][0]["chosen"] == {"learning_rate": 5e-4}
    # This time it succeeds, is chosen, and gets seeds of its own.
    again = Pretending({1e-3: 0.9})
    run_sweep(plan, tmp_path / "runs", again)
    asked = [(job.settings.learning_rate, job.settings.seed) for job in again.submitted]
    assert asked == [(1e-3, 1), (1e-3, 2), (1e-3, 3)]


def test_broken_metrics_are_a_failure(tmp_path: Path, searched: Path) -> None:
    plan = read_plan(searched)
    broken = tmp_path / "runs" / run_name(plan.cells[0].settings)
    broken.mkdir(parents=True)
    (broken / "config.yaml").write_text(settings_to_yaml(plan.cells[0].settings))
    RunDirectory(broken).finish({"dev": {}})
    (broken / "metrics.json").write_text('{"dev": ')
    state = SweepState(plan, tmp_path / "runs")
    settle_finished(state)
    (failure,) = state.failures
    assert failure.error is not None and f"{broken}: metrics.json is truncated or changed" in failure.error


def test_the_table_shows_what_was_chosen_and_what_failed(tmp_path: Path) -> None:
    rates, validation = [1e-2, 1e-3, 5e-4], {"folds": 3, "seeds": [1, 2]}
    path = write_plan(tmp_path, learning_rate=rates, seed=[4, 5], search="lr", cross_validation=validation)
    plan = read_plan(path)
    state = run_sweep(plan, tmp_path / "runs", Pretending({1e-2: 0.5, 1e-3: 0.8}, slots=3))
    assert len(state.outcomes) == plan.size == 3 * 3 * 2 + 2 and len(state.failures) == 6
    (cell,) = state.summary()["cells"]
    means = {one["value"]: (one["mean"], len(one["runs"])) for one in cell["candidates"]}
    assert means == {1e-2: (pytest.approx(0.5015), 6), 1e-3: (pytest.approx(0.8015), 6), 5e-4: (None, 6)}
    console = Console(width=200, file=io.StringIO(), color_system=None)
    console.print(result_table(state))
    shown = console.file.getvalue()
    assert "learning_rate 0.001" in shown and "failed: learning_rate=0.0005" in shown


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

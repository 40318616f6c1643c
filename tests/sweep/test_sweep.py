"""Which runs a cell asks for, what runs are called, and the records of a sweep with an engine that only pretends."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from prefixprop.cli.sweep import result_table
from prefixprop.sweep import (
    Cell,
    Job,
    JobEnd,
    SweepState,
    cell_progress,
    read_plan,
    run_name,
    run_sweep,
    settle_finished,
)
from prefixprop.train import RunDirectory, RunSettings, override, settings_to_yaml, train

from tiny_training import write_plan

BASE = RunSettings(task="hyperpartisan", kernel="exp", learning_rate=1e-2, alpha=5e-3)
CELL = Cell("kernel", BASE, {"learning_rate": (1e-2, 1e-3, 5e-4), "alpha": (5e-3, 1e-2)}, seeds=(1, 2, 3))
JUDGES = tuple({"seed": seed, "folds": 2, "fold": fold} for seed in (1, 2) for fold in (0, 1))
JUDGED = replace(CELL, judges=JUDGES)

RATES = (1e-2, 1e-3, 5e-4)


def at(learning_rate: float, alpha: float = 5e-3, seed: int = 1) -> str:
    return run_name(override(BASE, {"learning_rate": learning_rate, "alpha": alpha, "seed": seed}))


def judge_names(learning_rate: float, alpha: float = 5e-3) -> list[str]:
    candidate = override(BASE, {"learning_rate": learning_rate, "alpha": alpha})
    return [run_name(override(candidate, judge)) for judge in JUDGES]


def test_the_papers_order() -> None:
    scores: dict[str, float | None] = {}
    for stage, asked, found in (
        ("learning_rate", [at(rate) for rate in RATES], (0.7, 0.9, 0.8)),
        ("alpha", [at(1e-3, 1e-2)], (0.95,)),  # the first alpha at the chosen learning rate has been run already
        ("seeds", [at(1e-3, 1e-2, seed) for seed in (2, 3)], (0.9, 0.9)),
    ):
        progress = cell_progress(CELL, scores)
        assert progress.stage == stage and [name for name in progress.requested if name not in scores] == asked
        scores |= dict(zip(asked, found, strict=True))
    assert list(progress.final) == [at(1e-3, 1e-2, seed) for seed in (1, 2, 3)] and len(scores) == CELL.size == 6


@pytest.mark.parametrize(
    ("found", "stage", "chosen"),
    [
        ((0.7, "missing", 0.8), "learning_rate", None),  # nothing is chosen before all are known
        ((None, 0.1, 0.05), "alpha", 1e-3),  # a failed run is not chosen
        ((0.7, 0.9, 0.9), "alpha", 1e-3),  # of equals, the first is chosen
        ((None, None, None), "learning_rate", None),
    ],
)
def test_what_is_chosen(found: tuple[float | str | None, ...], stage: str, chosen: float | None) -> None:
    progress = cell_progress(
        CELL, {at(rate): one for rate, one in zip(RATES, found, strict=True) if one != "missing"}
    )
    assert progress.stage == stage and progress.stuck == (set(found) == {None}) and not progress.final
    assert chosen is None or list(progress.requested.values())[-1].learning_rate == chosen


@pytest.mark.parametrize("searched", [{}, {"learning_rate": (1e-2,)}])
def test_without_values_to_choose_from_the_seeds_are_run(searched: dict[str, tuple[float]]) -> None:
    cell = replace(JUDGED, searched=searched, seeds=(4, 5))
    progress = cell_progress(cell, {})
    assert [run.seed for run in progress.final.values()] == [4, 5]
    assert progress.stage == "seeds" and len(progress.requested) == cell.size == 2


def test_candidates_are_judged_by_the_mean_of_their_judges() -> None:
    # The best single run is not the one of the best mean, and a failed judge puts a candidate out.
    judged = {1e-2: (1.0, 0.1, 0.1, 0.1), 1e-3: (0.6, 0.7, 0.6, 0.7), 5e-4: (0.9, 0.9, 0.9, None)}
    assert list(cell_progress(JUDGED, {}).requested) == [name for rate in RATES for name in judge_names(rate)]
    scores = {name: one for rate in RATES for name, one in zip(judge_names(rate), judged[rate], strict=True)}
    second = cell_progress(JUDGED, scores)
    assert second.stage == "alpha"
    assert [name for name in second.requested if name not in scores] == judge_names(1e-3, 1e-2)
    assert [(one.axis, one.value, one.score) for one in second.candidates] == [
        ("learning_rate", 1e-2, pytest.approx(0.325)), ("learning_rate", 1e-3, pytest.approx(0.65)),
        ("learning_rate", 5e-4, None), ("alpha", 5e-3, pytest.approx(0.65)), ("alpha", 1e-2, None),
    ]  # fmt: skip
    last = cell_progress(JUDGED, scores | dict.fromkeys(judge_names(1e-3, 1e-2), 0.2))
    # The seeds are run anew, on the whole training set.
    assert list(last.final) == [at(1e-3, 5e-3, seed) for seed in (1, 2, 3)]
    assert all(run.folds is None and run.fold is None for run in last.final.values())
    assert len(last.requested) == JUDGED.size == 4 * 4 + 3


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (RunSettings(task="hyperpartisan"), "hyperpartisan-prefix-propagation-07942467a39c"),
        (RunSettings(task="arxiv", method="lora", lora_rank=4, seed=3), "arxiv-lora-a9ed2a6655f4"),
    ],
)
def test_names_stay_what_they_were(settings: RunSettings, name: str) -> None:
    """Another name for the same settings would have every finished run of someone's sweep computed again."""
    assert run_name(settings) == name


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"seed": 2}, False),
        ({"folds": 5, "fold": 0}, False),
        ({"keep": "last"}, False),
        ({"device_batch_size": 1, "precision": "bf16"}, True),  # how it is computed
        ({"epochs": 20, "num_virtual_tokens": 8}, True),  # the paper's values, which are the defaults
    ],
)
def test_a_name_depends_on_what_decides_the_outcome(changes: dict[str, object], is_same: bool) -> None:
    assert (run_name(override(BASE, changes)) == run_name(BASE)) == is_same


# --- with an engine ---


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

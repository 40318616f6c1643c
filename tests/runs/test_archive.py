"""Archives of runs: what is in them, and that reports and sweeps read them as they read the runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from prefixprop import load_run
from prefixprop.evaluation import read_predictions
from prefixprop.experiments import Job, JobEnd, read_plan, run_job, run_sweep
from prefixprop.experiments.cells import run_name
from prefixprop.reporting import archive_runs, make_report
from prefixprop.reporting.tables.markup import to_markdown
from prefixprop.training import RunDirectory

from tiny_runs import make_results
from tiny_training import write_plan


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with three seeds, a second rate, a fold, a run on questions, and the notes of a sweep."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        for method, skill in (("prefix-propagation", 2.5), ("prefix-tuning", 0.5)):
            run = make_results(folder / f"{method}-{seed}", skill=skill, seed=seed, method=method)
            (run / "adapter").mkdir()
            (run / "adapter" / "adapter_model.safetensors").write_bytes(b"w" * 1000)
    make_results(folder / "rate", skill=2, learning_rate=1e-2)
    make_results(folder / "fold", skill=2, learning_rate=1e-2, folds=5, fold=0)
    make_results(folder / "questions", task="wikihop", data_dir="/home/me/wikihop")
    environment = json.loads((folder / "rate" / "environment.json").read_text())
    environment["command"] = "/home/me/prefixprop train --run-dir /home/me/runs/rate"
    (folder / "rate" / "environment.json").write_text(json.dumps(environment))
    summary = {"plan": "p", "cells": [], "failed": {"gone": "/home/me/data.csv:1: there is no column 'label'."}}
    (folder / "sweep.json").write_text(json.dumps(summary))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def markdown(folder: Path) -> str:
    return "\n".join(map(to_markdown, make_report([folder]).tables))


def test_a_report_has_the_same_tables(runs: Path, tmp_path: Path) -> None:
    before = contents(runs)
    result = archive_runs([runs], tmp_path / "archive")
    assert len(result.added) == 9 and not result.present and not result.skipped
    expected = markdown(runs)
    assert "McNemar" in expected and "wikihop" in expected
    assert markdown(tmp_path / "archive") == expected
    assert contents(runs) == before, "originals are only read"
    remarks = make_report([tmp_path / "archive"]).remarks
    assert any("gone: the run failed in its sweep: data.csv:1: there is no column" in remark for remark in remarks)


def test_what_an_archived_run_has(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path)
    files = {file for file in contents(tmp_path) if file.startswith("prefix-tuning-1/")}
    assert files == {
        f"prefix-tuning-1/{name}"
        for name in (
            "config.yaml", "environment.json", "metrics.json", "history.jsonl", "labels.json", "lengths.json",
            "predictions/dev.jsonl.gz", "predictions/test.jsonl.gz",
        )
    }  # fmt: skip
    kept = {file for file in contents(tmp_path) if file.startswith("fold/")}
    assert kept == {f"fold/{Path(file).name}" for file in files if "predictions" not in file} - {"fold/lengths.json"}
    assert (runs / "fold" / "predictions" / "dev.jsonl").is_file() and (tmp_path / "fold" / "metrics.json").is_file()
    exact = read_predictions(runs / "rate" / "predictions" / "test.jsonl")
    rounded = read_predictions(tmp_path / "rate" / "predictions" / "test.jsonl")
    assert rounded.ids == exact.ids and rounded.labels == exact.labels
    np.testing.assert_array_equal(rounded.logits, exact.logits.round(3))
    assert (rounded.logits != exact.logits).any()


def test_no_path_of_the_machine_leaks(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path)
    assert not [file for file, content in contents(tmp_path).items() if b"/home/me" in content]
    assert RunDirectory(tmp_path / "questions").read_settings().data_dir == "wikihop"
    environment = json.loads((tmp_path / "rate" / "environment.json").read_text())
    assert environment["command"] == "prefixprop train --run-dir rate" and environment["archived"] is True


def test_the_same_bytes_every_time_and_of_an_archive(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path / "one")
    archive_runs([runs], tmp_path / "two")
    archive_runs([tmp_path / "one"], tmp_path / "three")
    assert len(contents(tmp_path / "one")) > 60
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "three")


def test_a_repeated_call_adds_what_is_new(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    late = tmp_path / "runs" / "rate"
    (late / "metrics.json").rename(tmp_path / "metrics.json")
    first = archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert len(first.added) == 8 and len(first.skipped) == 1
    assert f"{late}: the run is not finished" in first.skipped[0]
    (tmp_path / "metrics.json").rename(late / "metrics.json")
    left = tmp_path / "archive" / "prefix-tuning-1" / "metrics.json"
    left.write_text(left.read_text() + "\n\n")  # so that a rewriting would show
    marked = left.read_bytes()
    second = archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert second.added == [tmp_path / "archive" / "rate"] and len(second.present) == 8 and not second.skipped
    assert left.read_bytes() == marked


def test_notes_of_a_sweep_come_with_new_runs_only(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path)
    (tmp_path / "sweep.json").write_text('{"of": "a sweep in the archive"}')
    archive_runs([runs], tmp_path)
    assert "a sweep in the archive" in (tmp_path / "sweep.json").read_text()
    shutil.rmtree(tmp_path / "rate")
    archive_runs([runs], tmp_path)
    assert json.loads((tmp_path / "sweep.json").read_text())["plan"] == "p"


def test_places(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs / "rate"], tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["rate"]
    shutil.copytree(runs, tmp_path / "all" / "grid")
    archive_runs([tmp_path / "all", tmp_path / "all" / "grid"], tmp_path / "above")
    assert (tmp_path / "above" / "grid" / "rate" / "metrics.json").is_file()
    assert (tmp_path / "above" / "grid" / "sweep.json").is_file()
    assert [path.name for path in (tmp_path / "above").iterdir()] == ["grid"], "each run once"


def test_another_run_of_that_name_is_not_taken_for_it(tmp_path: Path) -> None:
    make_results(tmp_path / "one" / "run", seed=1)
    make_results(tmp_path / "two" / "run", seed=2)
    archive_runs([tmp_path / "one"], tmp_path / "archive")
    with pytest.raises(ValueError, match=r"two/run: .*archive/run is another run already: --seed \(was 1, now 2\)"):
        archive_runs([tmp_path / "two"], tmp_path / "archive")


def test_what_is_in_the_way_stays(tmp_path: Path) -> None:
    make_results(tmp_path / "runs" / "run")
    (tmp_path / "archive" / "run").mkdir(parents=True)
    (tmp_path / "archive" / "run" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="archive/run is in the way, and is no finished run; remove it"):
        archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert list(contents(tmp_path / "archive")) == ["run/mine.txt"]


def test_damaged_predictions_leave_no_half_a_run(tmp_path: Path) -> None:
    make_results(tmp_path / "runs" / "good", seed=1)
    bad = make_results(tmp_path / "runs" / "bad", seed=2) / "predictions" / "test.jsonl"
    bad.write_text("{}\n")
    result = archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert [path.name for path in result.added] == ["good"]
    assert len(result.skipped) == 1 and f"{bad}:1: the field 'id' is missing" in result.skipped[0]
    assert [path.name for path in (tmp_path / "archive").iterdir()] == ["good"]


def test_half_an_archived_run_of_a_killed_process_is_no_run(tmp_path: Path) -> None:
    make_results(tmp_path / "archive" / "run", seed=1)
    make_results(tmp_path / "archive" / ".prefixprop-tmp-0123", seed=2)
    assert make_report([tmp_path / "archive"]).summary.startswith("1 finished run")


def test_models_of_one_name(tmp_path: Path) -> None:
    for place in ("a", "b"):
        make_results(tmp_path / "runs" / place, model=f"/models/{place}/base")
    with pytest.raises(ValueError, match="/models/a/base and /models/b/base would both be called base"):
        archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


def test_an_output_among_the_runs(runs: Path) -> None:
    with pytest.raises(ValueError, match="where the archive would be taken for runs to archive"):
        archive_runs([runs], runs / "archive")
    assert not (runs / "archive").exists()


def test_an_archive_cannot_predict_and_says_why(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path)
    with pytest.raises(
        ValueError, match=r"rate: this is an archive of a run, which has no weights; .*--keep-weights"
    ):
        load_run(tmp_path / "rate")


class InThisProcess:
    """An engine without the start of a process for every run."""

    slots = 1

    def submit(self, job: Job) -> None:
        self.job = job

    def collect(self, timeout: float) -> list[JobEnd]:
        return [JobEnd(self.job, run_job(self.job), 1.0)]

    def close(self) -> None:
        pass


def test_a_sweep_takes_archived_runs_as_finished(tmp_path: Path) -> None:
    path = write_plan(
        tmp_path,
        method="head-only",
        num_virtual_tokens=None,
        learning_rate=[1e-2, 1e-3],
        search="learning_rate",
        seed=[1, 2],
    )
    plan = read_plan(path)
    first = run_sweep(plan, tmp_path / "runs", InThisProcess())
    assert len(first.outcomes) == plan.size == 3 and not first.failures
    archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert str(tmp_path) not in (tmp_path / "archive" / "sweep.json").read_text()
    (cell,) = first.plan.cells
    final = {run_name(run) for run in first.progress(cell).final}
    kept = {path.parent.parent.name for path in (tmp_path / "archive").rglob("predictions/test.jsonl.gz")}
    assert len(final) == 2 and kept == final, "of the three runs one only helped to choose"
    again = run_sweep(plan, tmp_path / "archive", InThisProcess())
    scores = {name: outcome.score for name, outcome in first.outcomes.items()}
    assert {name: outcome.score for name, outcome in again.outcomes.items()} == scores
    assert not any(outcome.is_new for outcome in again.outcomes.values())
    # And what a part lacks is run beside what was archived.
    lost = next(iter(first.outcomes))
    shutil.rmtree(tmp_path / "archive" / lost)
    third = run_sweep(plan, tmp_path / "archive", InThisProcess())
    assert [name for name, outcome in third.outcomes.items() if outcome.is_new] == [lost]
    assert {name: outcome.score for name, outcome in third.outcomes.items()} == scores


def test_a_run_of_other_results_is_not_taken_for_it(tmp_path: Path) -> None:
    for name, skill in (("one", 3.0), ("two", 0.1)):
        make_results(tmp_path / name / "run", skill=skill)
    result = archive_runs([tmp_path / "one", tmp_path / "two"], tmp_path / "archive")
    assert len(result.added) == 1 and "is another run already: its results are others" in result.skipped[0]

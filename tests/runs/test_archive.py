"""Archives of runs: what is in them, and that reports and sweeps read them as they read the runs."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from prefixprop import load_run
from prefixprop.evaluate import PredictionSet
from prefixprop.report import archive_runs, make_report
from prefixprop.report.tables.markup import to_markdown
from prefixprop.runs.archive_file import ArchiveFiles
from prefixprop.runs.archived_paths import settings_without_folders
from prefixprop.runs.find import find_runs, read_run
from prefixprop.runs.run import Run
from prefixprop.sweep import Job, JobEnd, read_plan, run_job, run_sweep

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


def archived(folder: Path, name: str) -> Run:
    (found,) = (run for run in find_runs([folder]).runs if run.path.name == name)
    return found


def forget(folder: Path, name: str) -> None:
    """Take a run out of an archive."""
    archive = ArchiveFiles.read(folder)
    del archive.lines[name]
    archive.write()


def markdown(folder: Path) -> str:
    return "\n".join(map(to_markdown, make_report([folder]).tables))


def test_a_report_has_the_same_tables(runs: Path, tmp_path: Path) -> None:
    before = contents(runs)
    result = archive_runs([runs], tmp_path / "archive")
    assert len(result.added) == 9 and not result.present and not result.skipped
    expected = markdown(runs)
    assert "p, seeds and documents" in expected and "wikihop" in expected
    assert markdown(tmp_path / "archive") == expected
    assert contents(runs) == before, "originals are only read"
    remarks = make_report([tmp_path / "archive"]).remarks
    assert any("gone: the run failed in its sweep: data.csv:1: there is no column" in remark for remark in remarks)


def test_what_an_archived_run_has(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path)
    assert set(contents(tmp_path)) == {"runs.jsonl.gz", "predictions.npz", "sweep.json"}
    for name in ("prefix-tuning-1", "fold", "questions"):
        original, kept = read_run(runs / name), archived(tmp_path, name)
        assert (kept.metrics, kept.history, kept.labels) == (original.metrics, original.history, original.labels)
        assert kept.settings == settings_without_folders(original.settings)
    fold, result = archived(tmp_path, "fold"), archived(tmp_path, "prefix-tuning-1")
    assert not fold.lengths and not fold.has_predictions("dev") and read_run(runs / "fold").has_predictions("dev")
    assert result.lengths == read_run(runs / "prefix-tuning-1").lengths


@pytest.mark.parametrize("name", ["rate", "questions"])
def test_predictions_in_half_precision(runs: Path, tmp_path: Path, name: str) -> None:
    archive_runs([runs], tmp_path)
    exact, half = read_run(runs / name).predictions("test"), archived(tmp_path, name).predictions("test")
    assert (half.ids, half.labels, half.candidates) == (exact.ids, exact.labels, exact.candidates)
    assert half.label_names == exact.label_names
    np.testing.assert_array_equal(half.logits, exact.logits.astype(np.float16).astype(float))
    assert (half.logits != exact.logits).any()
    np.testing.assert_allclose(half.probabilities, exact.probabilities, atol=2e-3)


def test_rounding_changes_no_prediction(tmp_path: Path) -> None:
    close = PredictionSet(("a", "b"), (1, 0), np.array([[1.0, 1.00001], [1e9, -3e8]]), label_names=("no", "yes"))
    archive = ArchiveFiles(tmp_path)
    line = {"name": "run", "settings": {}, "metrics": {}, "environment": {}, "history": []}
    archive.add(line, {"test": close}, ())
    archive.write()
    kept = ArchiveFiles.read(tmp_path).predictions("run", "test")
    assert kept.logits.argmax(axis=1).tolist() == [1, 0] and np.isfinite(kept.logits).all()


def test_a_damaged_archive_says_what_to_do(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path)
    (tmp_path / "predictions.npz").write_bytes(b"PK broken")
    with pytest.raises(ValueError, match=r"predictions.npz: .*archive"):
        archived(tmp_path, "rate").predictions("test")
    (tmp_path / "runs.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(ValueError, match=r"runs.jsonl.gz:1: the gzip data is damaged"):
        find_runs([tmp_path])


def test_no_path_of_the_machine_leaks(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path)
    assert not [file for file, content in contents(tmp_path).items() if b"/home/me" in content]
    assert archived(tmp_path, "questions").settings.data_dir == "wikihop"
    assert archived(tmp_path, "rate").environment["command"] == "prefixprop train --run-dir rate"
    assert b"/home/me" not in gzip.decompress((tmp_path / "runs.jsonl.gz").read_bytes())


def test_the_same_bytes_every_time_and_of_an_archive(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path / "one")
    archive_runs([runs], tmp_path / "two")
    archive_runs([tmp_path / "one"], tmp_path / "three")
    assert len(contents(tmp_path / "one")) == 3
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "three")


def test_a_repeated_call_adds_what_is_new(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    late = tmp_path / "runs" / "rate"
    (late / "metrics.json").rename(tmp_path / "metrics.json")
    first = archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert len(first.added) == 8 and len(first.skipped) == 1
    assert f"{late}: the run is not finished" in first.skipped[0]
    (tmp_path / "metrics.json").rename(late / "metrics.json")
    before = archived(tmp_path / "archive", "prefix-tuning-1")
    second = archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert second.added == [tmp_path / "archive" / "rate"] and len(second.present) == 8 and not second.skipped
    after = archived(tmp_path / "archive", "prefix-tuning-1")
    assert after.metrics == before.metrics
    np.testing.assert_array_equal(after.predictions("test").logits, before.predictions("test").logits)
    assert len(find_runs([tmp_path / "archive"]).runs) == 9


def test_notes_of_a_sweep_come_with_new_runs_only(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs], tmp_path)
    (tmp_path / "sweep.json").write_text('{"of": "a sweep in the archive"}')
    archive_runs([runs], tmp_path)
    assert "a sweep in the archive" in (tmp_path / "sweep.json").read_text()
    forget(tmp_path, "rate")
    archive_runs([runs], tmp_path)
    assert json.loads((tmp_path / "sweep.json").read_text())["plan"] == "p"


def test_places(runs: Path, tmp_path: Path) -> None:
    archive_runs([runs / "rate"], tmp_path / "one")
    assert [run.path for run in find_runs([tmp_path / "one"]).runs] == [tmp_path / "one" / "rate"]
    shutil.copytree(runs, tmp_path / "all" / "grid")
    archive_runs([tmp_path / "all", tmp_path / "all" / "grid"], tmp_path / "above")
    assert archived(tmp_path / "above", "rate").path == tmp_path / "above" / "grid" / "rate"
    assert (tmp_path / "above" / "grid" / "sweep.json").is_file()
    assert [path.name for path in (tmp_path / "above").iterdir()] == ["grid"], "each run once"


def test_another_run_of_that_name_is_not_taken_for_it(tmp_path: Path) -> None:
    make_results(tmp_path / "one" / "run", seed=1)
    make_results(tmp_path / "two" / "run", seed=2)
    archive_runs([tmp_path / "one"], tmp_path / "archive")
    with pytest.raises(
        ValueError, match=r"two/run: the archive has another run of this name: --seed \(was 1, now 2\)"
    ):
        archive_runs([tmp_path / "two"], tmp_path / "archive")


def test_damaged_predictions_leave_no_half_a_run(tmp_path: Path) -> None:
    make_results(tmp_path / "runs" / "good", seed=1)
    bad = make_results(tmp_path / "runs" / "bad", seed=2) / "predictions" / "test.jsonl"
    bad.write_text("{}\n")
    result = archive_runs([tmp_path / "runs"], tmp_path / "archive")
    assert [path.name for path in result.added] == ["good"]
    assert len(result.skipped) == 1 and f"{bad}:1: the field 'id' is missing" in result.skipped[0]
    assert [run.path.name for run in find_runs([tmp_path / "archive"]).runs] == ["good"]


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
        ValueError, match=r"rate: this is a run of an archive, which has no weights; .*--keep-weights"
    ):
        load_run(tmp_path / "rate")


class InThisProcess:
    """An engine without the start of a process for every run."""

    slots = 1

    def submit(self, job: Job) -> None:
        self.job = job

    def collect(self, timeout: float) -> list[JobEnd]:
        return [JobEnd(self.job, run_job(self.job))]

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
    final = set(first.progress(cell).final)
    kept = {run.path.name for run in find_runs([tmp_path / "archive"]).runs if run.has_predictions("test")}
    assert len(final) == 2 and kept == final, "of the three runs one only helped to choose"
    again = run_sweep(plan, tmp_path / "archive", InThisProcess())
    scores = {name: outcome.score for name, outcome in first.outcomes.items()}
    assert {name: outcome.score for name, outcome in again.outcomes.items()} == scores
    assert not any(outcome.is_new for outcome in again.outcomes.values())
    # And what a part lacks is run beside what was archived.
    lost = next(iter(first.outcomes))
    forget(tmp_path / "archive", lost)
    third = run_sweep(plan, tmp_path / "archive", InThisProcess())
    assert [name for name, outcome in third.outcomes.items() if outcome.is_new] == [lost]
    assert {name: outcome.score for name, outcome in third.outcomes.items()} == scores


def test_a_run_of_other_results_is_not_taken_for_it(tmp_path: Path) -> None:
    for name, skill in (("one", 3.0), ("two", 0.1)):
        make_results(tmp_path / name / "run", skill=skill)
    result = archive_runs([tmp_path / "one", tmp_path / "two"], tmp_path / "archive")
    assert len(result.added) == 1 and "has another run of this name: its results differ" in result.skipped[0]

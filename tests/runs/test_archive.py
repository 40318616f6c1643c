"""Archives of runs: reports and sweeps read them as they read the runs, and damage is noticed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixprop.report import archive_runs, find_runs, make_report
from prefixprop.report.table import to_markdown
from prefixprop.runs.find import read_run
from prefixprop.sweep import Job, JobEnd, read_plan, run_job, run_sweep

from tiny_runs import make_results
from tiny_training import write_plan

METHODS = {"prefix-propagation": 2.5, "prefix-tuning": 0.5}
CHOSEN = {f"{method}-{seed}" for method in METHODS for seed in (1, 2, 3)}
SEARCHED = {f"{method}-searched" for method in METHODS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two methods that chose one of two learning rates, and a fold, questions and LoRA beside it."""
    folder = tmp_path_factory.mktemp("runs")
    cells = []
    for method, skill in METHODS.items():
        for seed in (1, 2, 3):
            run = make_results(folder / f"{method}-{seed}", skill=skill, seed=seed, method=method)
            (run / "adapter").mkdir()
            (run / "adapter" / "adapter_model.safetensors").write_bytes(b"w" * 1000)
        make_results(folder / f"{method}-searched", skill=skill - 0.2, method=method, learning_rate=1e-2)
        final = [f"{method}-{seed}" for seed in (1, 2, 3)]
        cells.append({"runs": dict.fromkeys([*final, f"{method}-searched"], 0.5), "final_runs": final})
    make_results(folder / "by-hand", method="lora")
    make_results(folder / "fold", learning_rate=1e-2, folds=5, fold=0)
    make_results(folder / "questions", task="wikihop", data_dir="/data/wikihop")
    (folder / "sweep.json").write_text(json.dumps({"plan": "p", "cells": cells, "failed": {}}))
    return folder


@pytest.fixture(scope="module")
def archive(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}
    folder = tmp_path_factory.mktemp("archive") / "packed"
    archive_runs(find_runs([runs]).runs, folder)
    assert {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()} == before, "only read"
    return folder


def with_predictions(folder: Path) -> set[str]:
    return {run.path.name for run in find_runs([folder]).runs if run.has_predictions("test")}


def test_a_report_says_the_same(runs: Path, archive: Path) -> None:
    before, after = ("\n".join(map(to_markdown, make_report([folder]).tables)) for folder in (runs, archive))
    assert "p, seeds and documents" in before and "wikihop" in before
    assert after == before.replace("| data\\_dir | /data/wikihop |\n", "")


def test_what_an_archived_run_has(runs: Path, archive: Path) -> None:
    assert {path.name for path in archive.iterdir()} == {"runs.jsonl.gz", "predictions.npz"}
    assert with_predictions(archive) == CHOSEN | {"by-hand", "questions"}, "not of a search, and not of a fold"
    found = {run.path.name: run for run in find_runs([archive]).runs}
    assert {name for name, run in found.items() if run.search_only} == SEARCHED
    assert len(found) == len(list(runs.glob("*/metrics.json")))
    for name, kept in found.items():
        original = read_run(runs / name)
        for part in ("metrics", "history", "labels"):
            assert getattr(kept, part) == getattr(original, part), (name, part)
        assert kept.settings == replace(original.settings, data_dir=None)
        assert kept.environment == {key: value for key, value in original.environment.items() if key != "command"}
        if not kept.has_predictions("test"):
            assert not kept.lengths
            continue
        assert kept.lengths == original.lengths
        for split in ("dev", "test"):
            one, other = kept.predictions(split), original.predictions(split)
            for part in ("ids", "labels", "label_names", "candidates"):
                assert getattr(one, part) == getattr(other, part)
            np.testing.assert_array_equal(one.logits, other.logits.astype(np.float32))


def test_an_archive_can_be_packed_again(runs: Path, archive: Path, tmp_path: Path) -> None:
    make_results(tmp_path / "late", seed=4)
    archive_runs(find_runs([archive, tmp_path / "late"]).runs, tmp_path / "both")
    assert with_predictions(tmp_path / "both") == with_predictions(archive) | {"late"}
    assert {run.path.name for run in find_runs([tmp_path / "both"]).runs if run.search_only} == SEARCHED


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _flip, Path.unlink, lambda path: path.write_bytes(b"broken")])
def test_damage_is_noticed(archive: Path, tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    copied = Path(shutil.copytree(archive, tmp_path / "archive"))
    damage(copied / "predictions.npz")
    with pytest.raises(ValueError, match=r"predictions\.npz: .*missing or damaged .*archive the runs again"):
        for run in find_runs([copied]).runs:
            assert run.lengths is not None
            assert all(run.predictions(split).ids for split in run.read_predictions)
    if damage is not Path.unlink:
        damage(copied / "runs.jsonl.gz")
        found = find_runs([copied])
        assert not found.runs and re.match(r"Left out: .*runs\.jsonl\.gz:\d+: ", found.remarks[0])


def test_what_is_refused(runs: Path, tmp_path: Path) -> None:
    found = find_runs([runs]).runs
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file; give a folder"):
        archive_runs(found, tmp_path / "file")
    make_results(tmp_path / "other" / "by-hand", seed=7)
    with pytest.raises(ValueError, match=r"have the same name, by-hand; archive these folders separately"):
        archive_runs(find_runs([runs, tmp_path / "other"]).runs, tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


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
    search = {"learning_rate": [1e-2, 1e-3], "search": "learning_rate", "seed": [1, 2]}
    plan = read_plan(write_plan(tmp_path, method="head-only", num_virtual_tokens=None, **search))
    first = run_sweep(plan, tmp_path / "runs", InThisProcess())
    scores = {name: outcome.score for name, outcome in first.outcomes.items()}
    assert len(first.outcomes) == plan.size == 3 and not first.failures
    found = find_runs([tmp_path / "runs"]).runs
    archive_runs(found, tmp_path / "archive")
    (cell,) = first.plan.cells
    final = set(first.progress(cell).final)
    assert len(final) == 2 and with_predictions(tmp_path / "archive") == final
    # What a part lacks is run beside what was archived.
    archive_runs(found[1:], tmp_path / "part")
    for folder, new in (("archive", []), ("part", [found[0].path.name])):
        again = run_sweep(plan, tmp_path / folder, InThisProcess())
        assert {name: outcome.score for name, outcome in again.outcomes.items()} == scores
        assert [name for name, outcome in again.outcomes.items() if outcome.is_new] == new

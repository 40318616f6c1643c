"""Archives of sweeps: only results keep their predictions, and a report needs no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prefixprop.choices import DEFAULT_MODEL
from prefixprop.report import Report, archive_runs, make_report
from prefixprop.report.tables.markup import to_markdown
from prefixprop.runs.find import find_runs
from prefixprop.runs.run import Run

from tiny_runs import make_results

METHODS = {"prefix-propagation": 2.5, "prefix-tuning": 0.5}
RATES = {"low": 1e-3, "high": 1e-2}


def note(folder: Path, **chosen: str | None) -> None:
    """Write the notes of a sweep that searched both rates with seed 1, and ran three seeds of what was chosen."""
    cells = []
    for method, rate in zip(METHODS, chosen.values(), strict=True):
        final = [] if rate is None else [f"{method}-{rate}-{seed}" for seed in (1, 2, 3)]
        runs = dict.fromkeys([*(f"{method}-{searched}-1" for searched in RATES), *final], 0.5)
        cells.append({"name": method, "runs": runs, "final_runs": final})
    (folder / "sweep.json").write_text(json.dumps({"plan": "p", "cells": cells, "failed": {}}))


def make_run(folder: Path, method: str, rate: str, seed: int) -> Path:
    skill = METHODS[method] + (1 if rate == "low" else 0)
    name = f"{method}-{rate}-{seed}"
    return make_results(folder / name, skill=skill, method=method, learning_rate=RATES[rate], seed=seed)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that chose the low rate for both methods, a run on a fold, and a run beside it by hand."""
    folder = tmp_path_factory.mktemp("sweep")
    for method in METHODS:
        for seed in (1, 2, 3):
            make_run(folder, method, "low", seed)
        make_run(folder, method, "high", 1)
    make_results(folder / "by-hand", method="lora")
    make_results(folder / "fold", learning_rate=1e-2, folds=5, fold=0)
    note(folder, propagation="low", tuning="low")
    return folder


@pytest.fixture
def copied(sweep: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sweep, tmp_path / "runs"))


def with_predictions(archive: Path) -> set[str]:
    return {run.path.name for run in find_runs([archive]).runs if run.has_predictions("test")}


def archived(archive: Path, name: str) -> Run:
    (found,) = (run for run in find_runs([archive]).runs if run.path.name == name)
    return found


def tables(report: Report) -> str:
    return "\n".join(map(to_markdown, report.tables))


def finals(method: str, rate: str) -> set[str]:
    return {f"{method}-{rate}-{seed}" for seed in (1, 2, 3)}


LOW = finals("prefix-propagation", "low") | finals("prefix-tuning", "low")


def test_only_results_keep_predictions(sweep: Path, tmp_path: Path) -> None:
    result = archive_runs([sweep], tmp_path)
    assert len(result.added) == 10 and not (result.completed or result.present or result.skipped)
    assert with_predictions(tmp_path) == LOW | {"by-hand"}, "a run that the sweep knows nothing of is a result"
    search_only, result_of_sweep = (
        archived(tmp_path, "prefix-tuning-high-1"),
        archived(tmp_path, "prefix-tuning-low-2"),
    )
    assert search_only.history and search_only.labels and search_only.environment
    assert not search_only.lengths and result_of_sweep.lengths
    assert {path.name for path in tmp_path.iterdir()} == {"runs.jsonl.gz", "predictions.npz", "sweep.json"}


def test_a_report_says_and_draws_the_same(sweep: Path, tmp_path: Path) -> None:
    archive_runs([sweep], tmp_path)
    before, after = make_report([sweep]), make_report([tmp_path])
    assert "p, seeds and documents" in tables(before) and tables(after) == tables(before)
    (drawn, complaints), (drawn_before, _) = after.draw(), before.draw()
    assert not complaints
    names = [picture.name for picture in drawn]
    assert names == [picture.name for picture in drawn_before]
    assert {"document-lengths", "1-hyperpartisan-learning-rates", "1-hyperpartisan-2-reliability"} <= set(names)


def test_every_measure_can_be_computed_again(sweep: Path, tmp_path: Path) -> None:
    archive_runs([sweep], tmp_path)
    for name in LOW:
        run = archived(tmp_path, name)
        for split in ("dev", "test"):
            measured = run.predictions(split).evaluate()
            assert measured["micro_f1"] == run.metrics[split]["micro_f1"]
            assert measured["brier"] == pytest.approx(run.metrics[split]["brier"], abs=0.001)
            assert measured["nll"] == pytest.approx(run.metrics[split]["nll"], abs=0.001)


def test_a_cell_that_has_not_chosen_keeps_all(copied: Path, tmp_path: Path) -> None:
    note(copied, propagation="low", tuning=None)
    archive_runs([copied], tmp_path / "archive")
    assert with_predictions(tmp_path / "archive") == LOW | {"by-hand", "prefix-tuning-high-1"}


@pytest.mark.parametrize(
    "notes",
    [None, "{", "[]", '{"cells": {}}', '{"cells": [1, {"runs": 3, "final_runs": [["x"]]}]}'],
    ids=["none", "broken", "a list", "no cells", "odd cells"],
)
def test_without_notes_of_a_sweep_all_but_folds_keep_theirs(copied: Path, tmp_path: Path, notes: str | None) -> None:
    (copied / "sweep.json").unlink()
    if notes is not None:
        (copied / "sweep.json").write_text(notes)
    archive_runs([copied], tmp_path / "archive")
    searched = {f"{method}-high-1" for method in METHODS}
    assert with_predictions(tmp_path / "archive") == LOW | searched | {"by-hand"}


def test_a_run_that_two_cells_share_is_a_result_if_one_chose_it(copied: Path, tmp_path: Path) -> None:
    notes: Any = json.loads((copied / "sweep.json").read_text())
    shared = "prefix-tuning-high-1"
    notes["cells"].append({"name": "other", "runs": {shared: 0.5}, "final_runs": [shared]})
    (copied / "sweep.json").write_text(json.dumps(notes))
    archive_runs([copied], tmp_path / "archive")
    assert with_predictions(tmp_path / "archive") == LOW | {"by-hand", shared}


def test_a_run_that_became_a_result_gets_its_predictions(copied: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive_runs([copied], archive)
    before = {run.path.name: run.metrics for run in find_runs([archive]).runs}
    for seed in (2, 3):
        make_run(copied, "prefix-tuning", "high", seed)
    note(copied, propagation="low", tuning="high")
    result = archive_runs([copied], archive)
    assert result.completed == [archive / "prefix-tuning-high-1"]
    assert {path.name for path in result.added} == {"prefix-tuning-high-2", "prefix-tuning-high-3"}
    assert len(result.present) == 9 and not result.skipped
    assert with_predictions(archive) == LOW | {"by-hand"} | finals("prefix-tuning", "high")
    assert archived(archive, "prefix-tuning-high-1").lengths
    after = {run.path.name: run.metrics for run in find_runs([archive]).runs}
    assert {name: after[name] for name in before} == before, "others are left as they are"
    third = archive_runs([copied], archive)
    assert len(third.present) == 12 and not (third.added or third.completed)


def test_a_later_choice_alone_brings_the_notes_too(copied: Path, tmp_path: Path) -> None:
    archive_runs([copied], tmp_path / "archive")
    note(copied, propagation="low", tuning="high")
    assert len(archive_runs([copied], tmp_path / "archive").completed) == 1
    assert (tmp_path / "archive" / "sweep.json").read_text().count("prefix-tuning-high-3") == 2


def test_damaged_predictions_leave_the_archived_run_as_it_is(copied: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive_runs([copied], archive)
    note(copied, propagation="low", tuning="high")
    bad = copied / "prefix-tuning-high-1" / "predictions" / "test.jsonl"
    bad.write_text("{}\n")
    result = archive_runs([copied], archive)
    assert not result.completed and result.skipped and f"{bad}:1: the field 'id' is missing" in result.skipped[0]
    assert archived(archive, "prefix-tuning-high-1").metrics
    assert "prefix-tuning-high-1" not in with_predictions(archive)


def test_a_run_asked_for_by_name_keeps_its_predictions(sweep: Path, tmp_path: Path) -> None:
    archive_runs([sweep], tmp_path)
    name = "prefix-tuning-high-1"
    assert name not in with_predictions(tmp_path)
    assert archive_runs([sweep / name], tmp_path).completed == [tmp_path / name]
    assert name in with_predictions(tmp_path)


def test_an_archive_of_an_archive_has_what_that_has(sweep: Path, tmp_path: Path) -> None:
    archive_runs([sweep], tmp_path / "one")
    archive_runs([tmp_path / "one"], tmp_path / "two")
    assert with_predictions(tmp_path / "two") == LOW | {"by-hand"}
    # Nothing could be added, so nothing is written anew.
    note(tmp_path / "one", propagation="high", tuning="high")
    result = archive_runs([tmp_path / "one"], tmp_path / "two")
    assert len(result.present) == 10 and not result.completed


def test_what_a_report_needs_and_does_not_find_is_told(copied: Path, tmp_path: Path) -> None:
    # Each method has two rates with three seeds, and the sweep chose the one that is worse over all of them.
    for method in METHODS:
        for seed in (2, 3):
            make_run(copied, method, "high", seed)
    note(copied, propagation="high", tuning="high")
    notes = json.loads((copied / "sweep.json").read_text())
    for cell, method in zip(notes["cells"], METHODS, strict=True):
        cell["runs"] |= dict.fromkeys(finals(method, "low"), 0.5)
    (copied / "sweep.json").write_text(json.dumps(notes))
    shutil.rmtree(copied / "by-hand")
    archive_runs([copied], tmp_path / "archive")
    report = make_report([tmp_path / "archive"])
    assert {row.best.settings.learning_rate for row in report.comparisons[0].contenders} == {RATES["low"]}
    lacking = tmp_path / "archive" / "prefix-tuning-low-1"
    drawn, complaints = report.draw()
    assert any("seeds-test" in picture.name for picture in drawn)
    assert not any("reliability" in picture.name for picture in drawn)
    assert complaints[-1] == (
        f"No reliability diagram of prefix-tuning, {DEFAULT_MODEL}: "
        f"{lacking} has no predictions of test; archive the run by its name to add them."
    )
    assert "No bootstrap: none of these runs has predictions" in tables(report)


def test_another_seed_speaks_where_the_first_has_no_predictions(copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied / "prefix-tuning-low-1" / "predictions")
    report = make_report([copied])
    tests = next(table for table in report.tables if table.name.endswith("-tests"))
    place = [column.title for column in tests.columns].index("p, seeds and documents")
    assert {row[0].text: row[place].value for row in tests.rows}["prefix-propagation"] is not None
    assert tests.notes[-1] == "The bootstrap leaves out runs that have no predictions."
    drawn, complaints = report.draw()
    assert not complaints
    captions = [picture.caption for picture in drawn if picture.name.endswith("reliability")]
    assert any("prefix-tuning" in caption and "seed 2" in caption for caption in captions)

"""Runs of other protocols: folds of a cross-validation choose, and last epochs have tables of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import prefixprop.report.report as report_module
from prefixprop.report import make_report
from prefixprop.report.choose.comparisons import compare
from prefixprop.report.figures.methods import plot_learning_rates
from prefixprop.report.tables.results import choice_notes
from prefixprop.runs.find import FoundRuns, find_runs, read_run
from prefixprop.runs.run import Run

from tiny_runs import make_results


def a_run(folder: Path, fold: int | None = None, **settings: Any) -> Run:
    folds = None if fold is None else 3
    return read_run(make_results(folder / f"run{len(list(folder.iterdir()))}", fold=fold, folds=folds, **settings))


def test_runs_on_folds_are_in_no_row_but_in_the_choice(tmp_path: Path) -> None:
    folds = [
        a_run(tmp_path, fold, skill=skill, learning_rate=rate, documents=30 + fold)
        for rate, skill in ((5e-3, 3.0), (1e-2, 0.5))
        for fold in range(3)
    ]
    final = [a_run(tmp_path, seed=seed, learning_rate=5e-3) for seed in (1, 2)]
    (comparison,) = compare([*folds, *final])
    (row,) = comparison.contenders
    assert row.best.runs == tuple(final)
    assert len(row.trials) == 1
    assert [len(trial.runs) for trial in row.folds] == [3, 3]
    (note,) = choice_notes(comparison)
    assert "learning rate 0.005, the best of 2 tried in cross-validation (6 runs on folds)" in note
    figure = plot_learning_rates(comparison)
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_xdata()) == [5e-3, 1e-2]


def test_dev_has_no_say_between_values_that_a_cross_validation_judged(tmp_path: Path) -> None:
    folds = [a_run(tmp_path, 0, skill=3.0, learning_rate=1e-2), a_run(tmp_path, 0, skill=0.2, learning_rate=5e-3)]
    good_on_dev, good_on_folds = (
        [a_run(tmp_path, skill=skill, learning_rate=rate, seed=seed) for seed in (1, 2)]
        for skill, rate in ((3.0, 5e-3), (0.2, 1e-2))
    )
    for runs, chosen in (([], 5e-3), (folds, 1e-2)):
        (comparison,) = compare([*runs, *good_on_dev, *good_on_folds])
        assert comparison.contenders[0].best.settings.learning_rate == chosen


def test_folds_of_other_files_or_numbers_choose_nothing(tmp_path: Path) -> None:
    def runs(name: str, good: float, bad: float) -> list[Run]:
        files = {"task": None, **{f"{split}_files": (f"{name}-{split}.jsonl",) for split in ("train", "dev", "test")}}
        folds = [a_run(tmp_path, fold, skill=3.0, learning_rate=good, **files) for fold in (0, 1)]
        folds += [a_run(tmp_path, fold, skill=0.2, learning_rate=bad, **files) for fold in (0, 1)]
        return [*folds, *(a_run(tmp_path, learning_rate=rate, **files) for rate in (good, bad))]

    several = [*runs("a", 1e-2, 1e-3), *runs("b", 1e-3, 1e-2), *runs("c", 1e-3, 1e-2)]
    found = {one.contenders[0].best.runs[0].names_of_files[0]: one.contenders[0] for one in compare(several)}
    rates = [found[f"{name}-train.jsonl"].best.settings.learning_rate for name in "abc"]
    assert rates == [1e-2, 1e-3, 1e-3]
    one = runs("a", 1e-2, 1e-3)
    others = [replace(run, settings=replace(run.settings, folds=9)) for run in one if run.settings.fold == 0]
    more = [replace(run, settings=replace(run.settings, learning_rate=1e-3)) for run in others]
    (comparison,) = compare([*one, *more])
    assert comparison.contenders[0].best.settings.learning_rate == 1e-2


def test_among_equals_the_report_shows_what_the_sweep_chose(tmp_path: Path) -> None:
    rates = {"a": 1e-2, "b": 1e-3, "c": 5e-3}
    for name, rate in rates.items():
        make_results(tmp_path / name, learning_rate=rate)
    for chosen, rate in rates.items():
        cell = {"name": "x", "runs": dict.fromkeys(rates, 0.5), "final_runs": [chosen]}
        (tmp_path / "sweep.json").write_text(json.dumps({"plan": "p", "cells": [cell], "failed": {}}))
        (comparison,) = compare(find_runs([tmp_path]).runs)
        assert comparison.contenders[0].best.settings.learning_rate == rate


def test_folds_alone_have_a_report_but_no_split(tmp_path: Path) -> None:
    a_run(tmp_path, 0)
    a_run(tmp_path, 1)
    report = make_report([tmp_path])
    assert report.comparisons == ()
    assert [table.title for table in report.measured] == ["hyperpartisan: cross-validation on train"]
    assert report.summary == "2 finished runs on hyperpartisan."
    assert any("they are not results" in note for note in report.measured[0].notes)
    assert report.draw() == ([], [])
    assert "<h2>hyperpartisan</h2>\n<h3>Cross-validation on train</h3>" in report.page(), "not folded away"
    with pytest.raises(ValueError, match=r"No run at or below .* was judged on dev; leave --split out"):
        make_report([tmp_path], split="dev")


def test_the_last_epoch_is_another_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tuple(a_run(tmp_path, keep=keep, seed=seed) for keep in ("best", "last") for seed in (1, 2))
    monkeypatch.setattr(report_module, "find_runs", lambda paths: FoundRuns(runs, ()))
    report = make_report([tmp_path])
    assert [one.title for one in report.comparisons] == ["hyperpartisan", "hyperpartisan, last epoch"]
    assert [len(one.contenders[0].best.runs) for one in report.comparisons] == [2, 2]
    notes = {table.title: " ".join(table.notes) for table in report.measured}
    assert "The weights of the last epoch were judged" in notes["hyperpartisan, last epoch, dev: quality"]
    assert "last epoch" not in notes["hyperpartisan, dev: quality"]


def test_files_of_the_same_names_are_told_apart(tmp_path: Path) -> None:
    runs = []
    for name in ("books", "phones"):
        files = {"task": None, **{f"{split}_files": (f"{name}/{split}.jsonl",) for split in ("train", "dev", "test")}}
        run = a_run(tmp_path, **files)
        runs += [replace(run, environment={"documents": name}), replace(run, environment={"documents": name})]
    assert len({run.identity_of_documents for run in runs}) == 2
    titles = [comparison.title for comparison in compare(runs)]
    assert len(titles) == 2 and "books/train.jsonl" in titles[0] and "phones/train.jsonl" in titles[1]
    unnamed = [replace(run, settings=replace(run.settings, train_files=("train.jsonl",))) for run in runs]
    assert [comparison.title[-5:] for comparison in compare(unnamed)] == ["no. 1", "no. 2"]

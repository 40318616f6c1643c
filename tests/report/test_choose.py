"""Which runs stand together, which of them stand for a method, and what rows are called."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixprop.report.choose import compare, rows_of
from prefixprop.runs.find import Run, find_runs, read_run
from prefixprop.settings.resolve import resolve
from prefixprop.train import RunSettings

from tiny_runs import finish_again, make_results

PLAIN, REFERENCE = "prefix-propagation", "prefix-propagation, layout reference"


def a_run(folder: Path, fold: int | None = None, **settings: Any) -> Run:
    folds = None if fold is None else 3
    return read_run(make_results(folder / f"run{len(list(folder.iterdir()))}", fold=fold, folds=folds, **settings))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ([{"layout": "reference"}, {"layout": "reference", "seed": 2}], [PLAIN]),
        (
            [{}, {"layout": "reference"}, {"layout": "reference", "pooling": "prefix"}, {"warmup": 0.0}],
            [PLAIN, REFERENCE, f"{REFERENCE}, pooling prefix", f"{PLAIN}, warmup 0.0"],
        ),
        # Defaults are those of the paper for the task.
        (
            [{"epochs": 10}, {"epochs": 3}, {"num_virtual_tokens": 8, "epochs": 5}],
            [PLAIN, f"{PLAIN}, epochs 3", f"{PLAIN}, epochs 5"],
        ),
        # Attention's dropout follows the other.
        (
            [{}, {"dropout": 0.0}, {"dropout": 0.0, "attention_dropout": 0.1}],
            [PLAIN, f"{PLAIN}, dropout 0.0", f"{PLAIN}, dropout 0.0, attention dropout 0.1"],
        ),
        ([{"layout": "reference"}, {}, {"method": "lora", "layout": "reference"}], ["lora", REFERENCE, PLAIN]),
        ([{"max_length": 4096}, {"max_length": 512}], [PLAIN, f"{PLAIN}, max length 512"]),
        ([{"kernel": "rbf", "alpha_mode": "head"}], [f"{PLAIN}, rbf kernel, alpha per head"]),
    ],
)
def test_rows_are_called_by_what_tells_them_apart_and_is_not_the_default(
    settings: list[dict[str, Any]], names: list[str]
) -> None:
    runs = [Run(Path("run"), resolve(RunSettings(task="arxiv", **one)), {}) for one in settings]
    assert [row.name for row in rows_of(runs)] == names


# Skill by learning rate and seeds of the runs, then skill by learning rate on folds; what is chosen, of how many.
CHOICES = {
    "the best on dev of those with most seeds": (
        {5e-3: (2.0, 2), 1e-2: (0.1, 2), 1e-3: (9.0, 1)}, {}, (5e-3, 3, False),
    ),
    "folds choose alone": ({5e-3: (1.0, 2)}, {5e-3: 3.0, 1e-2: 0.5}, (5e-3, 2, True)),
    "dev has no say if folds judged all": ({5e-3: (3.0, 2), 1e-2: (0.2, 2)}, {5e-3: 0.2, 1e-2: 3.0}, (1e-2, 2, True)),
    "folds that did not judge all": ({5e-3: (3.0, 2), 1e-2: (0.2, 2)}, {1e-2: 3.0}, (5e-3, 2, False)),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_what_stands_for_a_method(case: str, tmp_path: Path) -> None:
    runs, folds, chosen = CHOICES[case]
    for rate, (skill, seeds) in runs.items():
        for seed in range(seeds):
            a_run(tmp_path, skill=skill, learning_rate=rate, seed=seed)
    for rate, skill in folds.items():
        for fold in (0, 1):
            a_run(tmp_path, fold, skill=skill, learning_rate=rate, documents=30 + fold)
    (comparison,) = compare(find_runs([tmp_path]).runs)
    (row,) = comparison.rows
    assert (row.settings.learning_rate, row.tried, row.by_folds) == chosen
    assert all(run.settings.fold is None for run in comparison.runs), "runs on folds are no results"


def test_among_equals_the_report_shows_what_the_sweep_chose(tmp_path: Path) -> None:
    rates = {"a": 1e-2, "b": 1e-3, "c": 5e-3}
    for name, rate in rates.items():
        make_results(tmp_path / name, learning_rate=rate)
    for chosen, rate in rates.items():
        cell = {"name": "x", "runs": dict.fromkeys(rates, 0.5), "final_runs": [chosen]}
        (tmp_path / "sweep.json").write_text(json.dumps({"plan": "p", "cells": [cell], "failed": {}}))
        (comparison,) = compare(find_runs([tmp_path]).runs)
        assert comparison.rows[0].settings.learning_rate == rate


def test_protocols_and_documents_are_kept_apart(tmp_path: Path) -> None:
    for keep in ("best", "last"):
        a_run(tmp_path, keep=keep)
    a_run(tmp_path, documents=30)
    a_run(tmp_path, task="wikihop")
    titles = [one.title for one in compare(find_runs([tmp_path]).runs)]
    assert titles == ["hyperpartisan, no. 1", "hyperpartisan, no. 2", "hyperpartisan, last epoch", "wikihop"]


def test_tfidf_which_has_no_epochs_stands_beside_runs_of_either_protocol(tmp_path: Path) -> None:
    a_run(tmp_path, keep="last")
    a_run(tmp_path, method="tfidf")
    (comparison,) = compare(find_runs([tmp_path]).runs)
    assert comparison.title == "hyperpartisan, last epoch" and len(comparison.rows) == 2
    assert comparison.models == {"longformer-mini-4096"}


def test_files_of_the_same_names_are_told_apart(tmp_path: Path) -> None:
    files = {"task": None, **{f"{split}_files": (f"{split}.jsonl",) for split in ("train", "dev", "test")}}
    run = a_run(tmp_path, **files)
    runs = [replace(run, environment={"documents": name}) for name in ("books", "phones")]
    assert [one.title for one in compare(runs)] == ["files, no. 1", "files, no. 2"]


@pytest.mark.parametrize("judged_on", ["5 folds", "dev"])
def test_left_out_documents_are_no_dev_set_and_stand_beside_others_on_the_test_set(
    tmp_path: Path, judged_on: str
) -> None:
    finish_again(a_run(tmp_path, method="readers").path, judged_on=judged_on)
    a_run(tmp_path)
    (comparison,) = compare(find_runs([tmp_path]).runs)
    assert {row.method for row in comparison.rows} == {"readers", PLAIN}
    assert list(comparison.documents) == (["dev", "held-out", "test"] if judged_on != "dev" else ["dev", "test"])
    readers = next(row for row in comparison.rows if row.method == "readers")
    assert bool(readers.values("held-out", "ece")) == (judged_on != "dev") != bool(readers.values("dev", "ece"))


def test_models_in_folders_go_by_the_folder_unless_that_is_ambiguous(tmp_path: Path) -> None:
    make_results(tmp_path / "a", model="/models/longformer")
    make_results(tmp_path / "b", model="/old/base")
    make_results(tmp_path / "c", model="/new/base")
    (comparison,) = compare(find_runs([tmp_path]).runs)
    assert {row.model for row in comparison.rows} == {"longformer", "/old/base", "/new/base"}

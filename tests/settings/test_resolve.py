"""What a run is made of: settings that fit together, none that are unused, and the paper's values for open ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixprop.cli.app import help_of
from prefixprop.data.tasks import TASKS, readers_schedule
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.methods import METHODS
from prefixprop.settings.resolve import (
    check_settings,
    documents_at_once,
    refuse_unused,
    resolve,
    unused_notes,
    with_method,
)
from prefixprop.settings.run_settings import SETTINGS, RunSettings
from prefixprop.sweep import read_plan

GOOD = RunSettings(task="hyperpartisan")
OWN = RunSettings(train_files=("mine.jsonl",))
WITH_LORA = "prefix-propagation+lora and prefix-tuning+lora"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"lora_targets": ()}, "--lora-targets: name at least one layer"),
        ({"train_files": (__file__,)}, "got --task and --train-files."),
        ({"task": None}, "Give one source of data, one of --task, --train-files, --hub-dataset."),
        ({"dev_files": (__file__,)}, "--dev-files: belongs to --train-files"),
        ({"task": None, "train_files": ("none.csv",)}, "--train-files: none.csv does not exist."),
        ({"folds": 5}, "--fold: --folds is 5, so say which is left out: 0 to 4."),
        ({"fold": 0}, "--folds: --fold is given, so say how many there are: at least 2."),
        ({"folds": 5, "fold": 5}, "--fold: with --folds 5, the last is 4, got 5."),
        ({"data_dir": "/no/such/folder"}, "--data-dir: /no/such/folder is not a folder."),
        ({"task": "wikihop", "method": "prefix-reading"}, "--method: prefix-reading classifies documents,"),
        ({"task": "wikihop", "method": "tfidf"}, "--method: tfidf classifies documents, and wikihop asks"),
        ({"label_column": ("topic", "tone")}, "--label-column: prefix-propagation trains for one column;"),
        ({"label_column": ()}, "--label-column: name each column once, and one at least."),
    ],
)
def test_what_does_not_fit_together(changes: dict[str, Any], problem: str) -> None:
    check_settings(GOOD)
    with pytest.raises(SettingsError) as raised:
        check_settings(replace(GOOD, **changes))
    assert len(raised.value.problems) == 1 and problem in raised.value.problems[0]


def test_readers_answer_several_questions_on_one_device() -> None:
    settings = replace(GOOD, method="readers", label_column=("topic", "tone"), batch_size=7)
    check_settings(settings)
    with pytest.raises(SettingsError, match=r"^--method: readers trains on one device; start one process\.$"):
        check_settings(settings, processes=2)


@pytest.mark.parametrize(
    ("batch_size", "at_once", "processes", "expected"),
    [(32, 8, 1, 8), (4, 8, 1, 4), (12, 8, 1, 6), (8, 16, 1, 8), (7, 3, 1, 1), (24, 8, 3, 8), (12, 8, 2, 6)],
)
def test_documents_at_once_make_whole_steps(batch_size: int, at_once: int, processes: int, expected: int) -> None:
    settings = replace(GOOD, batch_size=batch_size, device_batch_size=at_once)
    check_settings(settings, processes)
    assert documents_at_once(settings, processes) == expected
    with pytest.raises(SettingsError, match="cannot be shared by 5 processes; choose a multiple of 5"):
        check_settings(settings, processes=5)


def test_defaults_are_the_papers() -> None:
    run = resolve(GOOD)
    assert (run.epochs, run.num_virtual_tokens, run.learning_rate, run.attention_dropout) == (20, 8, 5e-3, 0.1)
    assert (run.batch_size, run.warmup, run.dropout, run.prefix_dropout) == (32, 0.1, 0.1, 0.1)
    assert resolve(run) == run and run.metric == "micro_f1"
    questions = resolve(RunSettings(task="wikihop", method="fine-tuning"))
    assert (questions.epochs, questions.num_virtual_tokens, questions.learning_rate) == (10, 32, 3e-5)
    assert questions.metric == "accuracy"
    given = resolve(replace(GOOD, epochs=2, learning_rate=1.0, attention_dropout=0.0))
    assert (given.epochs, given.learning_rate, given.attention_dropout) == (2, 1.0, 0.0)


def test_your_documents_have_other_defaults() -> None:
    run = resolve(OWN)
    assert (run.method, run.batch_size, run.learning_rate, run.epochs) == ("prefix-propagation+lora", 8, 5e-4, None)
    assert resolve(replace(OWN, task="newsgroups", train_files=())).method == "prefix-propagation"
    assert resolve(replace(OWN, method="lora", batch_size=32)).batch_size == 32


@pytest.mark.parametrize(
    ("changes", "documents", "processes", "method"),
    [
        ({}, 999, 1, "prefix-propagation+lora"),
        ({}, 1000, 1, "readers"),
        ({"max_train_documents": 999}, 5000, 1, "prefix-propagation+lora"),
        ({"seed": 2, "max_length": 256, "learning_rate": 1e-3}, 1000, 1, "readers"),
        ({"lora_rank": 4}, 1000, 1, "prefix-propagation+lora"),  # which readers do not have
        ({"early_stopping": 2}, 1000, 1, "prefix-propagation+lora"),
        ({}, 1000, 2, "prefix-propagation+lora"),  # readers train in one process
        ({"method": "lora"}, 1000, 1, "lora"),
        ({"train_files": (), "task": "newsgroups"}, 11_314, 1, "prefix-propagation"),
    ],
)
def test_many_of_your_documents_are_for_readers(
    changes: dict[str, Any], documents: int, processes: int, method: str
) -> None:
    assert with_method(replace(OWN, **changes), documents, processes).method == method


def test_a_task_of_a_users_module_may_have_other_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "mine", replace(TASKS["elife"], name="mine", method="lora", batch_size=16))
    run = resolve(RunSettings(task="mine"))
    assert (run.method, run.batch_size, run.learning_rate) == ("lora", 16, 5e-4)
    assert "If not set: 32, or 8 for your documents." in help_of(SETTINGS["batch_size"])
    assert "If not set: 10, or 20 for hyperpartisan; for your documents 10, or 5 if" in help_of(SETTINGS["epochs"])


@pytest.mark.parametrize(
    ("documents", "limit", "given", "epochs"),
    [(999, None, None, 10), (1000, None, None, 5), (5000, 999, None, 10), (5000, 2000, None, 5), (5000, None, 3, 3)],
)
def test_many_documents_get_fewer_epochs(documents: int, limit: int | None, given: int | None, epochs: int) -> None:
    settings = replace(OWN, method="lora", max_train_documents=limit, epochs=given)
    assert resolve(settings, whole=documents).epochs == epochs
    assert resolve(replace(settings, folds=5, fold=0), whole=documents).epochs == epochs
    assert resolve(GOOD, whole=documents).epochs == 20


@pytest.mark.parametrize(("documents", "limit"), [(None, None), (200, None), (9000, 200), (2000, None), (9000, None)])
@pytest.mark.parametrize("source", [OWN, GOOD], ids=["files", "task"])
def test_readers_leave_open_what_they_choose_themselves(
    source: RunSettings, documents: int | None, limit: int | None
) -> None:
    expected = (None, None) if documents is None else readers_schedule(limit or documents)
    run = resolve(replace(source, method="readers", max_train_documents=limit), whole=documents)
    assert (run.epochs, run.batch_size) == expected and resolve(run, whole=documents) == run
    assert (run.learning_rate, run.num_virtual_tokens, run.attention_dropout) == (None, None, None)
    given = replace(source, method="readers", learning_rate=1e-3, num_virtual_tokens=4, epochs=2, batch_size=3)
    run = resolve(given, whole=documents)
    assert (run.learning_rate, run.num_virtual_tokens, run.epochs, run.batch_size) == (1e-3, 4, 2, 3)
    fit = resolve(replace(given, method="tfidf"), whole=documents)
    assert (fit.learning_rate, fit.num_virtual_tokens, fit.epochs, fit.batch_size) == (None, None, None, None)


def test_only_what_trains_one_model_needs_a_dev_set() -> None:
    assert {name for name in METHODS if not replace(GOOD, method=name).selection["needs_dev"]} == {"readers", "tfidf"}


@pytest.mark.parametrize(
    ("settings", "limit", "expected"),
    [
        (GOOD, 8192, 4096),
        (GOOD, 512, 512),
        (OWN, 8192, 8192),
        (replace(OWN, max_length=64), 512, 64),
        # The released code shifts real tokens behind the prefix.
        (replace(OWN, method="prefix-tuning", layout="reference"), 4096, 4088),
    ],
)
def test_the_model_limits_the_length(settings: RunSettings, limit: int, expected: int) -> None:
    assert resolve(settings, limit).max_length == expected
    with pytest.raises(SettingsError, match=r"--max-length: 9000 tokens are more than the \d+ that .* reads here"):
        resolve(replace(settings, max_length=9000), limit)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"lora_rank": 4},
            f"--lora-rank: belongs to --method lora, {WITH_LORA}, and would change nothing here; leave it out.",
        ),
        ({"alpha": 0.01}, "--alpha: belongs to a --kernel, such as exp"),
        ({"method": "prefix-reading", "kernel": "exp"}, "--kernel: belongs to --method prefix-propagation, "),
        ({"method": "prefix-tuning", "pooling": "prefix"}, "--pooling: belongs to --method prefix-propagation and"),
        ({"max_chunks": 2}, "--max-chunks: belongs to a --task with questions, such as wikihop"),
        ({"text_column": "body"}, "--text-column: belongs to --train-files and --hub-dataset"),
        ({"task": "wikihop", "choose_by": "macro_f1"}, "--choose-by: belongs to tasks that classify documents"),
        ({"method": "prefix-reading", "keep_states": "no"}, "--keep-states: belongs to --method readers"),
        ({"method": "readers", "keep": "last"}, "--keep: belongs to methods that train one model"),
        ({"method": "tfidf", "epochs": 3}, "--epochs: belongs to methods that train on the encoder"),
        ({"method": "readers", "epochs": 3, "keep_states": "no", "num_virtual_tokens": 4}, None),
        ({"method": "prefix-reading", "gate": True, "init": "vocab", "reparameterize": True}, None),
        ({"method": "prefix-tuning+lora", "lora_rank": 4, "num_virtual_tokens": 4, "gate": True}, None),
        ({"kernel": "exp", "alpha": 0.01}, None),
        ({"task": "wikihop", "max_chunks": 2}, None),
        ({"task": None, "train_files": ("a.csv",), "text_column": "body"}, None),
    ],
)
def test_flags_without_effect_are_refused(changes: dict[str, Any], problem: str | None) -> None:
    settings = replace(GOOD, **changes)
    if problem is None:
        refuse_unused(settings, changes)
        return
    with pytest.raises(SettingsError) as raised:
        refuse_unused(settings, changes)
    assert [told.startswith(problem) for told in raised.value.problems] == [True]


def test_in_a_recipe_what_is_unused_is_told_and_left_out() -> None:
    shared = RunSettings(task="hyperpartisan", method="fine-tuning", kernel="exp", lora_rank=4)
    assert unused_notes(shared) == [
        f"kernel belongs to --method prefix-propagation, prefix-tuning, {WITH_LORA}, and changes nothing here",
        f"lora_rank belongs to --method lora, {WITH_LORA}, and changes nothing here",
    ]
    assert resolve(shared) == resolve(RunSettings(task="hyperpartisan", method="fine-tuning"))


def test_a_sweep_refuses_lists_that_no_run_uses(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("task: hyperpartisan\nlora_rank: 4\nalpha: [0.1, 0.2]\nsearch: alpha\n")
    with pytest.raises(SettingsError) as refused:
        read_plan(path)
    assert refused.value.problems == (f"{path}: alpha: belongs to a --kernel, such as exp, which no run here has.",)

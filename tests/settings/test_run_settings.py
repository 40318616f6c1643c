"""Settings: their checks, and the paper's values where none are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixprop.data.registry import TASKS
from prefixprop.settings.check import field_type
from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import SETTING_FIELDS, help_of
from prefixprop.train import RunSettings, SettingsError, check_settings

GOOD = RunSettings(task="hyperpartisan")


def problems(processes: int = 1, **changes: Any) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as raised:
        check_settings(replace(GOOD, **changes), processes)
    return raised.value.problems


def test_defaults_are_the_papers() -> None:
    check_settings(GOOD)
    run = resolve(GOOD)
    assert (run.epochs, run.num_virtual_tokens, run.learning_rate, run.attention_dropout) == (20, 8, 5e-3, 0.1)
    assert (run.batch_size, run.warmup, run.dropout, run.prefix_dropout) == (32, 0.1, 0.1, 0.1)
    questions = resolve(RunSettings(task="wikihop", method="fine-tuning"))
    assert (questions.epochs, questions.num_virtual_tokens, questions.learning_rate) == (10, 32, 3e-5)
    assert questions.metric == "accuracy" and run.metric == "micro_f1"


def test_documents_of_ones_own_have_other_defaults() -> None:
    own = RunSettings(train_files=("mine.jsonl",))
    assert own.is_prefix_method and own.method_row.name == "prefix-propagation+lora"
    run = resolve(own)
    assert (run.method, run.batch_size, run.learning_rate, run.epochs) == ("prefix-propagation+lora", 8, 5e-4, None)
    assert resolve(replace(own, task="newsgroups", train_files=())).method == "prefix-propagation"
    assert resolve(replace(own, method="lora", batch_size=32)).batch_size == 32


def test_a_task_of_ones_own_may_have_other_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "mine", replace(TASKS["elife"], name="mine", method="lora", batch_size=16))
    run = resolve(RunSettings(task="mine"))
    assert (run.method, run.batch_size, run.learning_rate) == ("lora", 16, 5e-4)
    assert "if not set, 32, or 8 for documents of your own." in help_of("batch_size")
    assert "the paper's: 10, and 20 for hyperpartisan. Documents of your own get 10, or 5 if" in help_of("epochs")


def test_what_is_set_stays() -> None:
    run = resolve(replace(GOOD, epochs=2, learning_rate=1.0, attention_dropout=0.0))
    assert (run.epochs, run.learning_rate, run.attention_dropout) == (2, 1.0, 0.0)


def test_every_setting_has_help_and_a_group() -> None:
    assert all(help_of(name).endswith(".") for name in SETTING_FIELDS)
    assert {declared.metadata["group"] for declared in SETTING_FIELDS.values()} == {
        "Data", "Model", "Method", "Optimisation", "Machine",
    }  # fmt: skip


def test_every_number_has_two_ends() -> None:
    for name, declared in SETTING_FIELDS.items():
        if field_type(name)[0] in (int, float):
            limits = declared.metadata["limits"]
            assert {limits.low, limits.above} != {None} and {limits.high, limits.below} != {None}, name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "--epochs: must be at least 1 and at most 1,000,000, got 0."),
        ({"epochs": "3"}, "--epochs: must be a whole number, got '3'."),
        ({"seed": True}, "--seed: must be a whole number, got True."),
        ({"epochs": 10**20}, f"--epochs: must be at least 1 and at most 1,000,000, got {10**20}."),
        ({"learning_rate": 1e30}, "--learning-rate: must be more than 0 and at most 100, got 1e+30."),
        ({"learning_rate": 10**400}, "--learning-rate: must be more than 0 and at most 100, got 1000"),
        ({"seed": 2**32}, "--seed: must be at least 0 and at most 4,294,967,295, got 4294967296."),
        ({"method": "lora", "lora_rank": 10**20}, "--lora-rank: must be at least 1 and at most 65,536, got 1000"),
        ({"warmup": 1.0}, "--warmup: must be at least 0 and less than 1, got 1.0."),
        ({"learning_rate": 0.0}, "--learning-rate: must be more than 0"),
        ({"learning_rate": float("nan")}, "--learning-rate: must be a number, got nan."),
        ({"method": "prefix-tunning"}, "(did you mean 'prefix-tuning'?); choose one of prefix-propagation"),
        ({"kernel": "gauss"}, "--kernel: 'gauss' is unknown; choose one of exp, rbf, poly, linear."),
        ({"precision": None}, "--precision: needs text."),
        ({"report_to": "wandb"}, "--report-to: must be a list of texts"),
        ({"batch_size": 12}, "choose a multiple of 8."),
        ({"method": "lora", "lora_targets": ()}, "--lora-targets: name at least one layer"),
        ({"train_files": ("x.csv",)}, "got --task and --train-files."),
        ({"task": None}, "Give one source of data, one of --task, --train-files, --hub-dataset."),
        ({"dev_files": ("x.csv",)}, "--dev-files: belongs to --train-files"),
        ({"folds": 1, "fold": 0}, "--folds: must be at least 2 and at most 1,000,000, got 1."),
        ({"folds": 5}, "--fold: --folds is 5, so say which is left out: 0 to 4."),
        ({"fold": 0}, "--folds: --fold is given, so say how many there are: at least 2."),
        ({"folds": 5, "fold": 5}, "--fold: of 5 --folds the last is 4, got 5."),
        ({"folds": 5, "fold": -1}, "--fold: must be at least 0 and at most 1,000,000, got -1."),
        ({"keep": "first"}, "--keep: 'first' is unknown; choose one of best, last."),
        ({"data_dir": "/no/such/folder"}, "--data-dir: /no/such/folder is not a folder."),
    ],
)
def test_problems_name_the_flag_and_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in problems(**changes)), problems(**changes)


def test_all_problems_are_told_at_once() -> None:
    assert len(problems(epochs=0, seed=-1, dropout=2.0)) == 3


def test_processes_share_a_batch() -> None:
    check_settings(GOOD, processes=4)
    (problem,) = problems(processes=3)
    assert "--device-batch-size 8 on each of 3 processes; choose a multiple of 24." in problem


def test_missing_files_are_found_before_anything_starts(tmp_path: Path) -> None:
    (problem,) = problems(task=None, train_files=(str(tmp_path / "none.csv"),))
    assert "none.csv: there is no such file or folder" in problem


def test_lists_are_taken_for_tuples() -> None:
    assert RunSettings(train_files=["a.jsonl"]) == RunSettings(train_files=("a.jsonl",))

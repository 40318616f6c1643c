"""Flags that change nothing are refused; in recipes and sweeps, which may serve several methods, they are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixprop.settings.resolve import idle_notes, refuse_idle, without_idle
from prefixprop.settings.run_settings import SETTING_FIELDS
from prefixprop.sweep import read_plan
from prefixprop.train import RunSettings, SettingsError

COMPOSED = "prefix-propagation+lora and prefix-tuning+lora"
LORA_RANK = f"--lora-rank: belongs to --method lora, {COMPOSED}, and would change nothing here; leave it out."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lora_rank": 4}, LORA_RANK),
        ({"alpha": 0.01}, "--alpha: belongs to a --kernel, such as exp"),
        ({"method": "lora", "prefix_dropout": 0.0}, "--prefix-dropout: belongs to --method prefix-propagation, "),
        ({"method": "fine-tuning", "num_virtual_tokens": 16}, "--num-virtual-tokens: belongs to --method prefix-"),
        ({"method": "lora", "kernel": "exp"}, "--kernel: belongs to --method prefix-propagation, prefix-tu"),
        ({"method": "prefix-tuning", "pooling": "prefix"}, "--pooling: belongs to --method prefix-propagation and"),
        ({"alpha_mode": "layer"}, "--alpha-mode: belongs to a --kernel, such as exp"),
        ({"max_chunks": 2}, "--max-chunks: belongs to a --task with questions, such as wikihop"),
        ({"text_column": "body"}, "--text-column: belongs to --train-files and --hub-dataset"),
    ],
)
def test_what_has_no_effect_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        refuse_idle(RunSettings(task="hyperpartisan", **changes), changes)
    assert [problem.startswith(words) for problem in raised.value.problems] == [True]


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "lora", "lora_rank": 4},
        {"method": "prefix-tuning+lora", "lora_rank": 4, "num_virtual_tokens": 4, "gate": True},
        {"kernel": "exp", "alpha": 0.01},
        {"prefix_dropout": 0.0, "num_virtual_tokens": 16},
        {"task": "wikihop", "max_chunks": 2},
        {"task": None, "train_files": ("a.csv",), "text_column": "body"},
    ],
)
def test_what_has_an_effect_is_not(changes: dict[str, Any]) -> None:
    refuse_idle(replace(RunSettings(task="hyperpartisan"), **changes), changes)


def test_in_a_recipe_it_is_told_and_left_out() -> None:
    shared = RunSettings(task="hyperpartisan", method="fine-tuning", kernel="exp", lora_rank=4)
    assert idle_notes(shared) == [
        f"kernel belongs to --method prefix-propagation, prefix-tuning, {COMPOSED}, and changes nothing here",
        f"lora_rank belongs to --method lora, {COMPOSED}, and changes nothing here",
    ]
    assert without_idle(shared) == RunSettings(task="hyperpartisan", method="fine-tuning")


def test_a_sweep_tells_what_no_run_uses(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("task: hyperpartisan\nlora_rank: 4\nalpha: [0.1, 0.2]\nsearch: alpha\n")
    assert read_plan(path).notes == (
        f"{path}:2: lora_rank belongs to --method lora, {COMPOSED}, which no run here has.",
        f"{path}:3: alpha belongs to a --kernel, such as exp, which no run here has.",
    )


def test_a_sweep_leaves_out_what_has_no_effect_in_a_variant(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "task: hyperpartisan\nnum_virtual_tokens: [8, 16]\nlora_rank: 4\n"
        "variants:\n  prefix: {}\n  all of it: {method: fine-tuning}\n  lora: {method: lora}\n"
    )
    cells = [(cell.name, cell.settings.num_virtual_tokens, cell.settings.lora_rank) for cell in read_plan(path).cells]
    usual = SETTING_FIELDS["lora_rank"].default
    assert cells == [
        ("hyperpartisan prefix num_virtual_tokens=8", 8, usual),
        ("hyperpartisan prefix num_virtual_tokens=16", 16, usual),
        ("hyperpartisan all of it", None, usual),
        ("hyperpartisan lora", None, 4),
    ]

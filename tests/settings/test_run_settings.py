"""Settings: the checks of their declaration, and that every one is declared well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prefixprop.cli.app import help_of
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.run_settings import SETTINGS, RunSettings

GOOD = RunSettings(task="hyperpartisan")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"epochs": 0}, "--epochs: must be greater than or equal to 1, got 0."),
        ({"epochs": "3"}, "--epochs: must be a valid integer, got '3'."),
        ({"seed": True}, "--seed: must be a valid integer, got True."),
        ({"learning_rate": 1e30}, "--learning-rate: must be less than or equal to 100, got 1e+30."),
        ({"learning_rate": 10**400}, "--learning-rate: must be a valid number, got 1000"),
        ({"learning_rate": float("nan")}, "--learning-rate: must be a finite number, got nan."),
        ({"lora_rank": 10**20}, "--lora-rank: must be less than or equal to 65536, got 1000"),
        ({"warmup": 1.0}, "--warmup: must be less than 1, got 1.0."),
        ({"target_precision": 0.0}, "--target-precision: must be greater than 0, got 0.0."),
        ({"method": "prefix-tunning"}, "(did you mean 'prefix-tuning'?); choose one of prefix-propagation"),
        ({"kernel": "gauss"}, "--kernel: 'gauss' is unknown; choose one of exp, rbf, poly, linear."),
        ({"precision": None}, "--precision: must be a valid string, got None."),
        ({"report_to": 3}, "--report-to: must be a list of texts, got 3."),
        ({"epoch": 3}, "There is no setting 'epoch' (did you mean 'epochs'?)."),
    ],
)
def test_problems_name_the_flag_and_what_is_allowed(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        replace(GOOD, **changes)
    assert len(raised.value.problems) == 1 and problem in raised.value.problems[0]


def test_values_are_taken_as_recipes_and_flags_spell_them() -> None:
    assert RunSettings(train_files=["a.jsonl"]) == RunSettings(train_files="a.jsonl")  # type: ignore[arg-type]
    assert RunSettings(learning_rate="5e-3").learning_rate == 5e-3  # type: ignore[arg-type]
    assert len({GOOD, replace(GOOD, seed=1), replace(GOOD, seed=2)}) == 2


def test_every_setting_has_help_and_a_group() -> None:
    assert all(help_of(setting).endswith(".") for setting in SETTINGS.values())
    assert {setting.group for setting in SETTINGS.values()} == {"Data", "Model", "Method", "Optimisation", "Machine"}


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.kind in (int, float)])
def test_every_number_has_two_ends(name: str) -> None:
    for end in (-(10**12), 10**12):
        with pytest.raises(SettingsError, match="must be"):
            replace(GOOD, **{name: end})

"""What a row is called: by what tells it from the others, and is not the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefixprop.report.choose.method_rows import method_rows
from prefixprop.runs.run import Run
from prefixprop.settings.resolve import resolve
from prefixprop.train import RunSettings


def names(*settings: dict[str, Any]) -> list[str]:
    runs = [Run(Path("run"), resolve(RunSettings(task="arxiv", **one)), {}) for one in settings]
    return [row.name for row in method_rows(runs)]


def test_a_setting_that_all_rows_share_is_not_told() -> None:
    assert names({"layout": "reference"}, {"layout": "reference", "seed": 2}) == ["prefix-propagation"]


def test_only_what_is_not_the_default_is_told() -> None:
    found = names({}, {"layout": "reference"}, {"layout": "reference", "pooling": "prefix"}, {"warmup": 0.0})
    assert found == [
        "prefix-propagation",
        "prefix-propagation, layout reference",
        "prefix-propagation, layout reference, pooling prefix",
        "prefix-propagation, warmup 0.0",
    ]


def test_defaults_are_those_of_the_paper_for_the_task() -> None:
    assert names({"epochs": 10}, {"epochs": 3}, {"num_virtual_tokens": 8, "epochs": 5}) == [
        "prefix-propagation",
        "prefix-propagation, epochs 3",
        "prefix-propagation, epochs 5",
    ]


def test_a_setting_that_follows_another_is_told_where_it_does_not() -> None:
    found = names({}, {"dropout": 0.0}, {"dropout": 0.0, "attention_dropout": 0.1})
    assert found == [
        "prefix-propagation",
        "prefix-propagation, dropout 0.0",
        "prefix-propagation, dropout 0.0, attention dropout 0.1",
    ]


def test_methods_do_not_tell_what_only_others_vary() -> None:
    assert names({"layout": "reference"}, {}, {"method": "lora", "layout": "reference"}) == [
        "lora",
        "prefix-propagation, layout reference",
        "prefix-propagation",
    ]


def test_a_length_is_told_where_another_row_reads_more() -> None:
    """Layout `reference` leaves fewer tokens of the same model to the text."""
    whole, shifted = {"max_length": 4096}, {"max_length": 4088, "layout": "reference", "num_virtual_tokens": 8}
    assert names(whole, shifted) == ["prefix-propagation", "prefix-propagation, layout reference"]
    assert names(whole, {"max_length": 512}) == ["prefix-propagation", "prefix-propagation, max length 512"]

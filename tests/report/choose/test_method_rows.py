"""What a row is called: by what tells it from the others, and is not the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixprop.report.choose.method_rows import method_rows
from prefixprop.runs.run import Run
from prefixprop.settings.resolve import resolve
from prefixprop.train import RunSettings

PLAIN, REFERENCE = "prefix-propagation", "prefix-propagation, layout reference"


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
        # Layout `reference` leaves fewer tokens of the same model to the text.
        (
            [{"max_length": 4096}, {"max_length": 4088, "layout": "reference", "num_virtual_tokens": 8}],
            [PLAIN, REFERENCE],
        ),
        ([{"max_length": 4096}, {"max_length": 512}], [PLAIN, f"{PLAIN}, max length 512"]),
    ],
)
def test_names(settings: list[dict[str, Any]], names: list[str]) -> None:
    runs = [Run(Path("run"), resolve(RunSettings(task="arxiv", **one)), {}) for one in settings]
    assert [row.name for row in method_rows(runs)] == names

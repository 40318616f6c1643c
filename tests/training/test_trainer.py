"""How the Trainer is set up."""

from __future__ import annotations

from typing import Any

import pytest

from prefixprop.training import RunSettings
from prefixprop.training.trainer import evaluated_at_once


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 16), ({"method": "fine-tuning"}, 16), ({"method": "head-only"}, 8), ({"gradient_checkpointing": True}, 8)],
)
def test_evaluation_takes_no_more_memory_than_training(changes: dict[str, Any], expected: int) -> None:
    assert evaluated_at_once(RunSettings(device_batch_size=8, **changes)) == expected

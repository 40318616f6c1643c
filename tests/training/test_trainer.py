"""How the Trainer is set up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from prefixprop.training import RunSettings
from prefixprop.training.trainer import evaluated_at_once, training_arguments


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 16), ({"method": "fine-tuning"}, 16), ({"method": "head-only"}, 8), ({"gradient_checkpointing": True}, 8)],
)
def test_evaluation_takes_no_more_memory_than_training(changes: dict[str, Any], expected: int) -> None:
    assert evaluated_at_once(RunSettings(device_batch_size=8, **changes)) == expected


@pytest.mark.parametrize("has_gpu", [False, True])
def test_batches_go_to_a_gpu_while_it_works(has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    settings = RunSettings(epochs=1, learning_rate=1e-3)
    arguments = training_arguments(settings, tmp_path, accumulation=1, use_bf16=False)
    assert arguments.accelerator_config.non_blocking is has_gpu

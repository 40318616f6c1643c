"""How the Trainer is set up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prefixprop.train import RunSettings
from prefixprop.train.trainer import evaluated_at_once, send_to_host, training_arguments


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 16), ({"method": "fine-tuning"}, 16), ({"method": "head-only"}, 8), ({"gradient_checkpointing": True}, 8)],
)
def test_evaluation_takes_no_more_memory_than_training(changes: dict[str, Any], expected: int) -> None:
    assert evaluated_at_once(RunSettings(**changes), 8) == expected


@pytest.mark.parametrize("has_gpu", [False, True])
def test_batches_go_to_a_gpu_while_it_works(has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    settings = RunSettings(epochs=1, learning_rate=1e-3)
    arguments = training_arguments(settings, tmp_path, at_once=8, use_bf16=False)
    assert arguments.accelerator_config.non_blocking is has_gpu


def test_a_number_of_the_cpu_is_there() -> None:
    number = torch.tensor(2.0, requires_grad=True)
    assert send_to_host(number)() == 2.0


def test_a_number_of_a_gpu_is_read_after_it_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = torch.tensor(float("nan"))  # what is there before the copy
    asked: list[bool] = []

    class OnGpu:
        is_cuda, device = True, torch.device("cuda")

        def detach(self) -> OnGpu:
            return self

        def to(self, device: str, non_blocking: bool) -> Tensor:
            asked.append(non_blocking)
            return memory

    class Event:
        stream: Any = None

        def record(self, stream: Any) -> None:
            self.stream = stream

        def synchronize(self) -> None:
            assert self.stream == "the stream of cuda"
            memory.fill_(3.0)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    arrived = send_to_host(OnGpu())  # type: ignore[arg-type]
    assert asked == [True] and memory.isnan()
    assert arrived() == 3.0

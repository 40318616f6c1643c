"""Numbers that are read when the device has sent them, and not when it has done everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from prefixprop.training.arriving import Arriving


def test_a_number_of_the_cpu_is_there() -> None:
    number = torch.tensor(2.0, requires_grad=True)
    assert Arriving(number).value() == 2.0


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
    arriving = Arriving(OnGpu())  # type: ignore[arg-type]
    assert asked == [True] and memory.isnan()
    assert arriving.value() == 3.0

"""Numbers that a GPU computes while the host goes on."""

from __future__ import annotations

import torch
from torch import Tensor


class Arriving:
    """A number on its way to the host; to read it waits for nothing that the device was given later.

    `tensor.item()` waits for everything that the device has been given until then, so also for the step that was
    started after the one whose number it is.
    """

    def __init__(self, number: Tensor) -> None:
        # Only CUDA's copies are made into memory where it is known when they have arrived.
        self._number = number.detach().to("cpu", non_blocking=number.is_cuda)
        self._arrival = torch.cuda.Event() if number.is_cuda else None
        if self._arrival is not None:
            self._arrival.record(torch.cuda.current_stream(number.device))

    def value(self) -> float:
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._number.item()

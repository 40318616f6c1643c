"""AdamW for a bank of readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from prefixprop.attention.backends import why_not


class ReaderAdamW:
    """AdamW (Loshchilov & Hutter, 2019) with a learning rate and a clipped gradient norm for each reader.

    Every parameter has the readers as its first dimension. Biases, which have one more, do not decay. The gradients
    are in `gradients`, where they stay: a recorded step writes there.
    """

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Sequence[Tensor], rates: Tensor, decay: float, max_norm: float) -> None:
        self.parameters, self.rates, self.decay, self.max_norm = list(parameters), rates, decay, max_norm
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = 0
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.is_fused = rates.is_cuda and why_not("triton", rates.device) is None

    @torch.no_grad()
    def step(self, share: float) -> None:
        """Apply the gradients; `share` is that of the peak of every learning rate."""
        self.steps += 1
        rates, scales = self.rates * share, torch.ones_like(self.rates)
        if self.max_norm:
            norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in self.gradients]).norm(dim=0)
            scales = (self.max_norm / (norms + 1e-6)).clamp(max=1.0)
        for parameter, *others in zip(self.parameters, self.gradients, self.means, self.squares, strict=True):
            decay = self.decay if parameter.dim() > 2 else 0.0
            self._update((parameter, *others), rates, scales, decay)

    def _update(self, tensors: tuple[Tensor, ...], rates: Tensor, scales: Tensor, decay: float) -> None:
        if self.is_fused:
            from prefixprop.train import triton_adamw  # needs Triton

            return triton_adamw.update(tensors, rates, scales, decay, self.BETAS, self.EPSILON, self.steps)
        parameter, gradient, mean, square = tensors
        first, second = self.BETAS
        rates, scales = (values.view(-1, *(1,) * (parameter.dim() - 1)) for values in (rates, scales))
        gradient = gradient * scales
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        parameter.mul_(1 - rates * decay)
        root = (square / (1 - second**self.steps)).sqrt_().add_(self.EPSILON)
        parameter.sub_(rates / (1 - first**self.steps) * mean / root)
        return None

    def state(self) -> dict[str, Any]:
        return {"means": self.means, "squares": self.squares, "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        for own, kept in zip((*self.means, *self.squares), (*state["means"], *state["squares"]), strict=True):
            own.copy_(kept)

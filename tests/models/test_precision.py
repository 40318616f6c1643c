"""Frozen weights in half precision."""

from __future__ import annotations

import torch
from torch import nn

from prefixprop.models.precision import hold_frozen_in_bfloat16


def test_only_frozen_weights_are_converted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    exact = model[0].weight.clone()
    hold_frozen_in_bfloat16(model)
    assert {parameter.dtype for parameter in model[0].parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model[1].parameters()} == {torch.float32}
    assert torch.equal(model[0].weight, exact.to(torch.bfloat16))
    assert not model[0].weight.requires_grad and model[1].weight.requires_grad

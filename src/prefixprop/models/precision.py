"""Frozen weights in half precision."""

from __future__ import annotations

import torch
from torch import nn


def hold_frozen_in_bfloat16(model: nn.Module) -> None:
    """Convert every weight that is not trained, once, as autocast would at each step anew.

    Trained weights keep their type. A Longformer whose layers are held so is computed a layer at a time (see
    `prefixprop.attention.gpu.frozen_layer`), in half the memory.
    """
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(torch.bfloat16)

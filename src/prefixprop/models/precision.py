"""Frozen weights in half precision."""

from __future__ import annotations

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn


def hold_frozen_in_bfloat16(model: nn.Module) -> None:
    """Convert every weight that is not trained, once; autocast, which the model is to run under, would at each step.

    Trained weights keep their type. A Longformer whose layers are held so is computed a layer at a time (see
    `prefixprop.attention.triton.frozen_layer`), in half the memory.
    """
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(torch.bfloat16)
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            # peft would take LoRA's input to float32, and autocast back again.
            module.cast_input_dtype_enabled = False

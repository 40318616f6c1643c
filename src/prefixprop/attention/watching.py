"""Whether somebody waits for a module to be called: then nothing may go past it."""

from __future__ import annotations

from torch import nn


def is_watched(module: nn.Module) -> bool:
    """A hook would see the module's call, or the gradients of it."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)

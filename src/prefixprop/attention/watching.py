"""Whether somebody waits for a module to be called: then nothing may go past it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as of_all_modules


def is_hook_of(source: Any, hook: Any) -> bool:
    """Whether a hook serves `source`, a prefix method: the backbone that made it gave it the source to ask."""
    return source is not None and any(given is source for given in getattr(hook, "args", ()))


def is_watched(module: nn.Module) -> bool:
    """A hook would see the module's call, or the gradients of it, or accelerate fetches its weights for the call."""
    return bool(module._forward_pre_hooks or "_hf_hook" in vars(module) or is_output_watched(module))


def is_output_watched(module: nn.Module) -> bool:
    """A hook would see what the module returns, or the gradients of it; or one of all modules, whatever it sees."""
    return bool(
        module._forward_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or of_all_modules._global_forward_hooks
        or of_all_modules._global_forward_pre_hooks
        or of_all_modules._global_backward_hooks
        or of_all_modules._global_backward_pre_hooks
    )

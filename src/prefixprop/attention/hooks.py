"""Which computations can be skipped.

A module with hooks must be called as usual, so nothing that would bypass it can be used. And where the embeddings are
frozen, only a prefix needs gradients of the first layer's input, so the gradients of all other rows can be skipped.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules


def is_hook_of(source: Any, hook: Any) -> bool:
    """Whether a hook belongs to `source`, a prefix method: its backbone makes hooks as partials of the source."""
    return source is not None and any(given is source for given in getattr(hook, "args", ()))


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook sees the module's call or its gradients, or accelerate loads its weights for the call."""
    return bool(module._forward_pre_hooks or "_hf_hook" in vars(module) or has_output_hooks(module))


def has_output_hooks(module: nn.Module) -> bool:
    """Whether a hook sees the module's output or its gradients, or a global hook is set for all modules."""
    return bool(
        module._forward_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or of_all_modules._global_forward_hooks
        or of_all_modules._global_forward_pre_hooks
        or of_all_modules._global_backward_hooks
        or of_all_modules._global_backward_pre_hooks
    )


def grad_rows(longformer: Any, source: Any, embedded: Tensor) -> int | None:
    """How many rows at the front of the first layer's input need a gradient: those of `source`, a prefix method.

    None for all rows: where the embeddings are trained, or where some other hook might add trained parameters.
    """
    encoder = longformer.encoder
    others = [hook for hook in encoder._forward_pre_hooks.values() if not is_hook_of(source, hook)]
    if embedded.requires_grad or others or has_hooks(encoder.layer[0]):
        return None
    return 0 if source is None else source.virtual_tokens()

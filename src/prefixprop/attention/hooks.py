"""What may be left out of a pass, because nobody waits for it.

Nothing may go past a module that somebody watches. And of the first layer's backward pass hardly anything is asked:
nothing learns in front of it but a prefix, so what the embedded rows would get through attention to each other need
not be computed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules


def is_hook_of(source: Any, hook: Any) -> bool:
    """Whether a hook serves `source`, a prefix method: the backbone that made it gave it the source to ask."""
    return source is not None and any(given is source for given in getattr(hook, "args", ()))


def has_hooks(module: nn.Module) -> bool:
    """A hook would see the module's call, or the gradients of it, or accelerate fetches its weights for the call."""
    return bool(module._forward_pre_hooks or "_hf_hook" in vars(module) or has_output_hooks(module))


def has_output_hooks(module: nn.Module) -> bool:
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


def grad_rows(longformer: Any, source: Any, embedded: Tensor) -> int | None:
    """How many rows at the front of the first layer's input want a gradient: those of `source`, a prefix method.

    None for all rows: where the embeddings learn, and where a hook of somebody else might add what learns.
    """
    encoder = longformer.encoder
    others = [hook for hook in encoder._forward_pre_hooks.values() if not is_hook_of(source, hook)]
    if embedded.requires_grad or others or has_hooks(encoder.layer[0]):
        return None
    return 0 if source is None else source.virtual_tokens()

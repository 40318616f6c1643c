"""Replacing the forwards of an encoder and restoring them, and finding the hooks that rule out fused layers.

`install` asks for the fast attention permanently, and a prefix method while its adapter is active. One patch per
encoder serves both and decides at every forward pass. When neither asks, Hugging Face's own forwards run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from threading import get_ident
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules

from prefixprop.attention.backends import Backend, choose
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import NO_PREFIX, LayerPrefix, PrefixSource

Undo = Callable[[], None]
Result = TypeVar("Result")
ATTRIBUTE = "attention_patch"  # of a LongformerModel, or a ModernBertModel
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a module
GLOBAL_HOOKS = [getattr(of_all_modules, f"_global{name}") for name in HOOKS]  # of all modules


class LayerPass(NamedTuple):
    """A layer that is being computed: how its rows attend, and what a prefix method gives it."""

    pattern: AttentionPattern
    prefix: LayerPrefix


class EncoderPatch(ABC):
    """The replaced forwards of one encoder."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.backend: str | None = None
        self.source: PrefixSource | None = None
        self.running: Backend | None = None  # of the last pass; None where Hugging Face's attention runs
        self._layers: dict[int, LayerPass] = {}  # that are being computed, by thread
        self.plans: dict[Any, Any] = {}  # of the layers, kept by a backend
        self._undo: list[Undo] = self.replace()

    @abstractmethod
    def replace(self) -> list[Undo]:
        """Replace the encoder's forwards."""

    @classmethod
    def of(cls, encoder: Any) -> Self:
        """The patch of this encoder, which is made if there is none."""
        if getattr(encoder, ATTRIBUTE, None) is None:
            setattr(encoder, ATTRIBUTE, cls(encoder))
        return getattr(encoder, ATTRIBUTE)

    def is_on(self) -> bool:
        return self.backend is not None or self.active_source() is not None

    def active_source(self) -> PrefixSource | None:
        return self.source if self.source is not None and self.source.is_active() else None

    def start(self, states: Tensor) -> Backend:
        """The backend for a pass with these states."""
        self.running = choose(self.backend, states.device)
        return self.running

    @contextmanager
    def computing(self, index: int, states: Tensor, pattern: AttentionPattern) -> Iterator[LayerPass]:
        """While a layer is computed; the prefix method is asked here, once."""
        source, thread = self.active_source(), get_ident()
        prefix = NO_PREFIX if source is None else source.at(index, states.shape[0])
        # Backward may recompute a checkpointed layer, after a pass without a prefix.
        self.running, self._layers[thread] = pattern.backend, LayerPass(pattern, prefix)
        try:
            yield self._layers[thread]
        finally:
            del self._layers[thread]

    @property
    def layer(self) -> LayerPass | None:
        """The layer that is being computed, for the modules in it; None outside a pass of the fast attention."""
        return self._layers.get(get_ident())

    def listen_to(self, source: PrefixSource) -> Undo:
        self.source = source
        return self._stop_listening

    def _stop_listening(self) -> None:
        self.source = None
        self.release_if_unused()

    def release_if_unused(self) -> None:
        if self.backend is None and self.source is None:
            while self._undo:
                self._undo.pop()()
            self.plans.clear()
            delattr(self.encoder, ATTRIBUTE)


def without_compiler(function: Callable[..., Result]) -> Callable[..., Result]:
    """Let `torch.compile` run this function as it is, with a graph break; without a compiler this costs nothing."""
    left_alone = torch.compiler.disable(function)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Result:
        return (left_alone if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return run


def replace_forward(module: Any, replacement: Callable[..., Any]) -> Undo:
    """Replace the forward of this one module by `replacement(original, module, ...)`."""
    before = vars(module).get("forward")
    # Faster than `module.forward = ...`, which matters for batches of many adapters.
    vars(module)["forward"] = partial(replacement, module.forward, module)
    # Not a closure: a deep copy of the model must undo its own change, not this model's.
    return partial(_restore_forward, module, before)


def _restore_forward(module: Any, before: Callable[..., Any] | None) -> None:
    if before is None:
        del vars(module)["forward"]
    else:
        vars(module)["forward"] = before


def is_hook_of(source: Any, hook: Any) -> bool:
    """Whether a hook belongs to `source`, a prefix method: its backbone makes hooks as partials of the source."""
    return source is not None and any(given is source for given in getattr(hook, "args", ()))


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook sees the module's call or its gradients, or accelerate loads its weights for the call.

    Such a module must be called as usual, so nothing that would bypass it can be used.
    """
    return bool(module._forward_pre_hooks or "_hf_hook" in vars(module) or has_output_hooks(module))


def has_output_hooks(module: nn.Module) -> bool:
    """Whether a hook sees the module's output or its gradients, or a global hook is set for all modules."""
    own = module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own) or any(GLOBAL_HOOKS)

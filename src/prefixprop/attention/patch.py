"""Replacing the forwards of an encoder, and putting them back.

`install` asks for the fast attention permanently, and a prefix method while its adapter is active. One patch per
encoder serves both and decides at every forward pass. When neither asks, Hugging Face's own forwards run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Self, TypeVar

import torch

from prefixprop.attention.prefix import PrefixSource

Undo = Callable[[], None]
Result = TypeVar("Result")
ATTRIBUTE = "attention_patch"  # of a LongformerModel, or a ModernBertModel


class EncoderPatch(ABC):
    """The replaced forwards of one encoder."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.backend: str | None = None
        self.source: PrefixSource | None = None
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

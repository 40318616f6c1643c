"""Who asks for the fast attention of an encoder, whatever its family.

Two do: `install`, for good, and a prefix method, while its adapter is active. One object per encoder serves both and
decides at every forward pass; without either the forwards are Hugging Face's own to the bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from prefixprop.attention.forwards import Undo
from prefixprop.attention.prefix import FusedPart, PrefixedKeys, PrefixPart

Result = TypeVar("Result")
ATTRIBUTE = "fast_attention"  # of a LongformerModel, or a ModernBertModel


class PrefixSource(Protocol):
    """What attention asks of a prefix method while it runs."""

    def is_active(self) -> bool: ...

    def key_values(self, layer: int, batch: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values in front of a layer's own, [batch or 1, heads, j, head size] each, if any (Eq. 2)."""

    def prefix_rows(self) -> int:
        """How many rows in front of the sequence are the prefix (Eq. 1)."""

    def kept(self) -> tuple[int, bool]:
        """How many rows these are, and whether the very first is kept, to be pooled."""

    def pooled_row(self) -> int:
        """Which row a head that pools the first one gets to see, counted with these."""

    def prefix_part(self, layer: int) -> PrefixPart | None:
        """What attention to the prefix becomes when it leaves the softmax (Eq. 3)."""

    def fused_part(self, layer: int) -> FusedPart | None:
        """The same for backends that compute it themselves; None without a part, or with a kernel of one's own."""


class InstalledAttention(ABC):
    """What stands between an encoder and its attention."""

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
        """The one of this model."""
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


def prefixed_keys(source: PrefixSource | None, index: int, hidden_states: Tensor) -> PrefixedKeys | None:
    prefix = None if source is None else source.key_values(index, hidden_states.shape[0])
    return None if prefix is None else PrefixedKeys(*prefix)

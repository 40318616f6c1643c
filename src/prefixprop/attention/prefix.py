"""What attention needs to know about a prefix: its keys and values, and how Eq. 3 weighs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from prefixprop.attention.pattern import AttentionPattern

# (query, prefix keys, prefix values, dropout) -> what is added to the rows' attention (Eq. 3)
PrefixPart = Callable[[Tensor, Tensor, Tensor, float], Tensor]


class FusedPart(NamedTuple):
    """α · Σ k(q, k_p) v_p / Σ k(q, k_p) with a built-in kernel, for backends that compute it themselves.

    Kernels by name, with s = `scale` and size d of a head: exp, e^(s⟨q, k⟩); rbf, e^(-s‖q - k‖² / 2); poly,
    (s⟨q, k⟩ + `offset`)^`degree`; linear, φ(sq) · φ(sk) with φ(x) = elu(x) + 1.
    α is the number `alpha`; or `trained` [heads]; or with `trained` [heads, d], alpha · 2σ(⟨trained, q⟩ / √d).
    `trained` is contiguous.
    """

    kernel: str
    scale: float
    offset: float
    degree: int
    alpha: float
    trained: Tensor | None


class PrefixedKeys(NamedTuple):
    """Trained keys and values in front of everybody's own: [batch or 1, heads, j, head size] each (Eq. 2)."""

    keys: Tensor
    values: Tensor


class LayerPrefix(NamedTuple):
    """What a prefix method gives one layer."""

    key_values: PrefixedKeys | None  # in front of the layer's own (Eq. 2)
    part: PrefixPart | None  # the attention to the prefix outside the softmax (Eq. 3)
    fused: FusedPart | None  # the same for backends that compute it themselves; None with a custom kernel


NO_PREFIX = LayerPrefix(None, None, None)


class PrefixSource(Protocol):
    """What attention and encoders ask of a prefix method while it runs."""

    def is_active(self) -> bool: ...

    def virtual_tokens(self) -> int:
        """How many virtual tokens stand in front of the sequence (Eq. 1)."""

    def first_rows(self, states: Tensor) -> Tensor | None:
        """Virtual tokens for the embedded sequence `states`, [batch, j, hidden]; None if there are none."""

    def rows_outside_softmax(self) -> int:
        """How many of these are in no softmax (Eq. 3)."""

    def pools_prefix(self) -> bool:
        """Whether the head reads the first virtual token, which is kept for it."""

    def reserved_positions(self) -> int:
        """How many positions the prefix takes in front of the text: none, except in layout `reference`."""

    def at(self, layer: int, batch: int) -> LayerPrefix:
        """What a layer gets. Asked once for each layer of a pass: dropout of the prefix is drawn here."""


def outside_softmax(
    key: Tensor, value: Tensor, prefix: PrefixedKeys | None, pattern: AttentionPattern
) -> tuple[Tensor, Tensor]:
    """Keys and values of a prefix outside the softmax: trained ones, or those of the virtual tokens."""
    rows = pattern.rows_outside_softmax
    return (key[:, :, :rows], value[:, :, :rows]) if prefix is None else (prefix.keys, prefix.values)


def add_prefix_part(
    output: Tensor,
    prefix_part: PrefixPart,
    by_head: list[Tensor],
    prefix: PrefixedKeys | None,
    pattern: AttentionPattern,
    dropout: float,
) -> Tensor:
    """Attention plus the second part of Eq. 3.

    `by_head` holds projections of all rows: each row's query, then keys and values for local and for global rows.
    """
    query, key, value, k_global, v_global = by_head
    part = prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    if prefix is None:
        theirs = prefix_part(query, *outside_softmax(k_global, v_global, prefix, pattern), dropout)
        part = torch.where(pattern.is_global[:, None, :, None], theirs, part)
    return (output + part.transpose(1, 2).flatten(2)).masked_fill(pattern.is_masked[..., None], 0.0)


def as_rows(prefix: PrefixedKeys | None, rows: Tensor) -> Tensor:
    """Prefix keys and values of every example, [batch, j, 2 width]."""
    if prefix is None:
        return rows.new_empty(rows.shape[0], 0, 2 * rows.shape[2])
    both = torch.stack(prefix, dim=1).to(rows.dtype).permute(0, 3, 1, 2, 4)  # [batch or 1, j, 2, heads, size]
    return both.flatten(2).expand(rows.shape[0], -1, -1)


def for_batch(prefix: Tensor, rows: Tensor) -> Tensor:
    return prefix.to(rows.dtype).expand(rows.shape[0], -1, -1, -1)


def with_prefix(prefix: Tensor, own: Tensor) -> Tensor:
    """Keys or values of a prefix [batch or 1, heads, j, size] in front of a layer's own (Eq. 2)."""
    return torch.cat([for_batch(prefix, own), own], dim=2)

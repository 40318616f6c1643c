"""What attention is given of a prefix: trained keys and values, and what becomes of those outside the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from prefixprop.attention.pattern import AttentionPattern

# (query, prefix keys, prefix values, dropout) -> what is added to the rows' attention (Eq. 3)
PrefixPart = Callable[[Tensor, Tensor, Tensor, float], Tensor]


class PrefixedKeys(NamedTuple):
    """Trained keys and values in front of everybody's own: [batch or 1, heads, j, head size] each (Eq. 2)."""

    keys: Tensor
    values: Tensor


def outside_softmax(
    key: Tensor, value: Tensor, prefix: PrefixedKeys | None, pattern: AttentionPattern
) -> tuple[Tensor, Tensor]:
    """Keys and values of the prefix where it is in no softmax: trained ones, or those of its rows."""
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
    """Attention with the second part of Eq. 3, from what was projected for all rows, split into heads.

    That is: each row's own query, the plain key and value, and those that are for global rows.
    """
    query, key, value, far_key, far_value = by_head
    part = prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    if prefix is None:
        theirs = prefix_part(query, *outside_softmax(far_key, far_value, prefix, pattern), dropout)
        part = torch.where(pattern.is_global[:, None, :, None], theirs, part)
    return (output + part.transpose(1, 2).flatten(2)).masked_fill(pattern.is_masked[..., None], 0.0)


def for_batch(prefix: Tensor, rows: Tensor) -> Tensor:
    return prefix.to(rows.dtype).expand(rows.shape[0], -1, -1, -1)

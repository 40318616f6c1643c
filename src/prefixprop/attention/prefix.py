"""What attention is given of a prefix: trained keys and values, and what becomes of those outside the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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
    """Keys and values of the prefix where it is in no softmax: trained ones, or those of the hidden rows."""
    rows = pattern.hidden_rows
    return (key[:, :, :rows], value[:, :, :rows]) if prefix is None else (prefix.keys, prefix.values)


def for_batch(prefix: Tensor, rows: Tensor) -> Tensor:
    return prefix.to(rows.dtype).expand(rows.shape[0], -1, -1, -1)

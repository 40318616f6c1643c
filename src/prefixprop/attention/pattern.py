"""Which rows attend to which: computed once per forward pass and shared by all layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Prepared = TypeVar("Prepared")
ALL_ROWS = -1  # need a gradient


@dataclass(frozen=True)
class GlobalTokens:
    """Positions of each example's global tokens, [batch, most of any example], padded at the end."""

    index: Tensor
    valid: Tensor

    @classmethod
    def find(cls, is_global: Tensor) -> GlobalTokens | None:
        most = int(is_global.sum(dim=1).max())
        if most == 0:
            return None
        order = torch.sort(is_global.to(torch.int8), dim=1, descending=True, stable=True).indices[:, :most]
        return cls(order, is_global.gather(1, order))

    @classmethod
    def first(cls, count: int, is_masked: Tensor) -> GlobalTokens | None:
        """The first `count` tokens of every example."""
        if count == 0:
            return None
        index = torch.arange(count, device=is_masked.device).expand(len(is_masked), -1)
        return cls(index, torch.ones_like(index, dtype=torch.bool))

    def gather(self, rows: Tensor) -> Tensor:
        """[batch, heads, length, size] -> the global tokens' rows."""
        return rows.gather(2, self.index[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[3]))


@dataclass(frozen=True)
class Blocks:
    """Queries in `count` blocks of `size` rows, each with the keys of `margin` rows on either side of it.

    `bias` [batch * count, 1, size, keys] is added to the scores over: prefix keys, global tokens, neighbourhood.
    """

    size: int
    margin: int
    count: int
    bias: Tensor


@dataclass
class AttentionPattern:
    """Padding, global tokens, and what is known about them without reading values back from a GPU.

    Attributes:
        is_masked: Padding, [batch, length].
        is_global: Rows that see all rows and are seen by all, [batch, length].
        rows_outside_softmax: How many rows at the front are a prefix that is in no softmax (Eq. 3).
        cls_row: The only row of the last layer that is read, if that is known; it is global, or padding.
        grad_rows: How many rows at the front need a gradient of the first layer's input, if the others do not.
        backend: What computes the attention.
        front_rows: How many rows at the front are global, if that is known and no others are.
        unpadded_rows: How many rows at the end are keys, if it is known that no token is padding.
    """

    is_masked: Tensor
    is_global: Tensor
    rows_outside_softmax: int = 0
    cls_row: int | None = None
    grad_rows: int | None = None
    backend: Any = None
    front_rows: int | None = None
    unpadded_rows: int | None = None
    _prepared: dict[tuple, Any] = field(default_factory=dict, init=False)

    @classmethod
    def with_rows_in_front(
        cls, is_masked: Tensor, count: int, rows_outside_softmax: int = 0, unpadded: bool = False
    ) -> AttentionPattern:
        """Tokens with `count` global rows in front of them, which `is_masked` includes.

        `rows_outside_softmax` is all of these rows, or none. `unpadded`: it is known that no token is padding.
        """
        everywhere = torch.arange(is_masked.shape[1], device=is_masked.device) < count
        pattern = cls(is_masked, everywhere.expand_as(is_masked), rows_outside_softmax, front_rows=count)
        # These do not depend on values, so that nothing waits for a GPU.
        pattern.tokens = GlobalTokens.first(count, is_masked)
        pattern.key_tokens = None if rows_outside_softmax else pattern.tokens
        pattern.is_unseen = is_masked | everywhere if rows_outside_softmax else is_masked
        pattern.unpadded_rows = is_masked.shape[1] - rows_outside_softmax if unpadded else None
        return pattern

    @cached_property
    def is_prefix(self) -> Tensor:
        return torch.arange(self.is_masked.shape[1], device=self.is_masked.device) < self.rows_outside_softmax

    @cached_property
    def is_unseen(self) -> Tensor:
        """Keys that no row sees."""
        return self.is_masked | self.is_prefix if self.rows_outside_softmax else self.is_masked

    @cached_property
    def tokens(self) -> GlobalTokens | None:
        """Global tokens, as queries."""
        return GlobalTokens.find(self.is_global)

    @cached_property
    def key_tokens(self) -> GlobalTokens | None:
        """Global tokens, as keys."""
        return GlobalTokens.find(self.is_global & ~self.is_prefix) if self.rows_outside_softmax else self.tokens

    def prepared(self, prepare: Callable[..., Prepared], *details: Hashable) -> Prepared:
        """`prepare(pattern, *details)`, computed once."""
        wanted = (prepare, *details)
        if wanted not in self._prepared:
            self._prepared[wanted] = prepare(self, *details)
        return self._prepared[wanted]

    def blocks(self, reach: int, prefix_keys: int, dtype: torch.dtype, whole_grid: bool) -> Blocks:
        """Blocks of rows that see `reach` neighbours on either side; more than one block if `whole_grid`."""
        return self.prepared(AttentionPattern._cut, reach, prefix_keys, dtype, whole_grid)

    def bias(self, dtype: torch.dtype) -> Tensor:
        """What is added to the scores of rows that see all, [batch, 1, 1, length]."""
        return as_bias(~self.is_unseen[:, None, None, :], dtype)

    def _cut(self, reach: int, prefix_keys: int, dtype: torch.dtype, whole_grid: bool) -> Blocks:
        batch, length = self.is_masked.shape
        single = length <= 3 * reach and not whole_grid  # cheaper to compute all than to cut
        size, margin = (length, 0) if single else (reach, reach)
        count = math.ceil(length / size)
        position = torch.arange(size + 2 * margin, device=self.is_masked.device)
        distance = position[None, :] - margin - position[:size, None]
        seen = cut_windows(~(self.is_masked | self.is_global)[:, None, :, None], size, margin, count)[..., 0]
        # Every row sees at least itself, padding too: fused attention may return NaN for a row without keys.
        shown = [(distance.abs() <= reach) & seen | (distance == 0)]  # [batch * count, size, window]
        if self.key_tokens is not None:
            valid = self.key_tokens.valid.repeat_interleave(count, dim=0)[:, None, :]
            shown.insert(0, valid.expand(-1, size, -1))
        if prefix_keys:
            shown.insert(0, seen.new_ones(batch * count, size, prefix_keys))
        return Blocks(size, margin, count, as_bias(torch.cat(shown, dim=-1)[:, None], dtype))


def as_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0, or the lowest finite number, so that rows that see nothing stay finite."""
    bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return bias.masked_fill_(~visible, torch.finfo(dtype).min)


def cut_windows(rows: Tensor, size: int, margin: int, count: int) -> Tensor:
    """[batch, heads, length, width] -> [batch * count, heads, size + 2 * margin, width], zeros outside."""
    length = rows.shape[2]
    if count == 1 and margin == 0 and size == length:
        return rows
    padded = F.pad(rows, (0, 0, margin, count * size - length + margin))
    windows = padded.unfold(2, size + 2 * margin, size)  # [batch, heads, count, width, window]
    return windows.permute(0, 2, 1, 4, 3).flatten(0, 1)


def join_blocks(rows: Tensor, batch: int, length: int) -> Tensor:
    """[batch * count, heads, size, width] -> [batch, heads, length, width]."""
    return rows.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :length]

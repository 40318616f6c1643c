"""The attention pattern as the kernels read it: computed on the device, so that nothing waits for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.triton.tiles import (
    ALWAYS_VISIBLE,
    FACTS,
    FIRST,
    GLOBAL,
    LAST,
    LEADING,
    LOCAL,
    MASKED,
    TOKENS,
)
from prefixprop.attention.triton.triton_kernel import TritonKernel

# Programs that share the global rows, or the always visible keys, of an example's head: as many as keep a GPU busy
# with all examples and heads. More would have no work.
MOST_SHARES, PROGRAMS = 16, 1536


class DevicePattern(NamedTuple):
    """`tokens` [batch, length + 1] lists each example's global tokens at its front; [batch, 0] if there are none.

    `always_visible_keys` are the keys that every local row sees, as indices into the rows of all examples: first the
    prefix keys, which are extra rows behind all tokens (Eq. 2), then the global tokens. `facts` [batch, 5] are counts
    and bounds, in the order that tiles.py names.
    """

    kind: Tensor  # [batch, length]: LOCAL, GLOBAL or MASKED
    tokens: Tensor
    always_visible_keys: Tensor
    facts: Tensor
    arrivals: Tensor  # [lanes, shares]: counters of programs that share work; kernels reset them to zero

    @classmethod
    def of(cls, pattern: AttentionPattern, prefix_keys: int, heads: int) -> DevicePattern:
        made = cls(*_make(pattern.is_masked, pattern.is_global, prefix_keys, pattern.rows_outside_softmax, heads))
        return made._replace(tokens=made.tokens[:, :0]) if pattern.front_rows == 0 else made

    @property
    def has_tokens(self) -> bool:
        """Whether there may be global tokens; for some models it is known that there are none."""
        return self.tokens.shape[1] > 0


def _make(
    is_masked: Tensor, is_global: Tensor, prefix_keys: int, rows_outside_softmax: int, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    made = _shapes(is_masked, is_global, prefix_keys, rows_outside_softmax, heads)
    made[4].zero_()
    batch, length = is_masked.shape
    _LIST_TOKENS(
        (batch,),
        (is_masked.contiguous().view(torch.int8), is_global.contiguous().view(torch.int8), *made[:4]),
        (batch, length, prefix_keys, rows_outside_softmax),
        BLOCK=16 if INTERPRETED else 1024,
    )
    return made


def _shapes(
    is_masked: Tensor, is_global: Tensor, prefix_keys: int, rows_outside_softmax: int, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, length = is_masked.shape
    # The interpreter runs programs one after the other.
    shares = 3 if INTERPRETED else min(MOST_SHARES, max(1, PROGRAMS // (batch * heads)))
    return (
        is_masked.new_empty(batch, length, dtype=torch.int8),
        is_masked.new_empty(batch, length + 1, dtype=torch.int32),
        is_masked.new_empty(batch, prefix_keys + length, dtype=torch.int32),
        is_masked.new_empty(batch, FACTS.value, dtype=torch.int32),
        is_masked.new_empty(batch * heads, shares, dtype=torch.int32),
    )


@triton.jit(do_not_specialize=["batch", "length", "prefix", "outside"])
def _list_tokens(
    is_masked,
    is_global,
    kinds,
    tokens,
    always_visible_keys,
    facts,
    batch,
    length,
    prefix,
    outside,
    BLOCK: tl.constexpr,
):
    example = tl.program_id(0)
    here = example.to(tl.int64) * length
    tokens += example * (length + 1)
    always_visible_keys += example * (length + prefix)
    facts += example * FACTS
    for start in range(0, prefix, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(always_visible_keys + place, batch * length + example * prefix + place, mask=place < prefix)
    token_count, visible_count, first, last, leading = 0, prefix, length, 0, length
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < length
        masked = tl.load(is_masked + here + place, mask=inside, other=1) != 0
        everywhere = tl.load(is_global + here + place, mask=inside, other=0) != 0
        kind = tl.where(masked, MASKED, tl.where(everywhere, GLOBAL, LOCAL))
        tl.store(kinds + here + place, kind.to(tl.int8), mask=inside)
        tl.store(tokens + token_count + tl.cumsum(everywhere.to(tl.int32), 0) - 1, place, mask=everywhere)
        is_always_visible = everywhere & (place >= outside)
        slot = visible_count + tl.cumsum(is_always_visible.to(tl.int32), 0) - 1
        tl.store(always_visible_keys + slot, example * length + place, mask=is_always_visible)
        token_count += tl.sum(everywhere.to(tl.int32), 0)
        visible_count += tl.sum(is_always_visible.to(tl.int32), 0)
        first = tl.minimum(first, tl.min(tl.where(masked, length, place), 0))
        last = tl.maximum(last, tl.max(tl.where(masked, 0, place + 1), 0))
        leading = tl.minimum(leading, tl.min(tl.where(kind == GLOBAL, length, place), 0))
    tl.store(facts + FIRST, tl.minimum(first, last))  # all padding: from 0 to 0
    tl.store(facts + LAST, last)
    tl.store(facts + TOKENS, token_count)
    tl.store(facts + ALWAYS_VISIBLE, visible_count)
    tl.store(facts + LEADING, leading)


_LIST_TOKENS = TritonKernel(_list_tokens)

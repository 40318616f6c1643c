"""Attention of virtual tokens that only read (see `prefixprop.attention.reading`), in one kernel each way.

A program has all queries of some readers. It visits the text, and then the readers' own keys, of which each query
sees those of its own reader. Nobody else sees these, so backward has the whole gradient of them in the same program.
The text gets no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.modernbert import Angles
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.triton.attention_backward import receive
from prefixprop.attention.triton.attention_forward import finish_rows, start_rows
from prefixprop.attention.triton.launch_attention import DevicePattern, Shape, factors, precision
from prefixprop.attention.triton.rope import Rope
from prefixprop.attention.triton.shared import (
    FACTS,
    FIRST,
    LAST,
    UNSEEN,
    Gradients,
    TritonKernel,
    draw_dropout_seeds,
    load_rows,
    run,
    score,
    store_rows,
    visit,
    visit_sequence,
)


class KeptReading(NamedTuple):
    qkv: Tensor
    kv: Tensor
    output: Tensor
    lse: Tensor


@dataclass(frozen=True, slots=True)
class Reading:
    """A step (see `shared.run`) of queries, keys and values."""

    heads: int
    length: int  # virtual tokens of a reader
    first_only: bool  # whether only the first of them asks
    dropout: float
    kind: Tensor
    facts: Tensor
    seeds: list[Tensor]  # of dropout, for queries, text and own keys

    @property
    def asking(self) -> int:
        """Queries of a reader."""
        return 1 if self.first_only else self.length

    def forward(self, qkv: Tensor, kv: Tensor, keeps: bool) -> tuple[Tensor, tuple[KeptReading]]:
        batch, rows, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        queries = rows // self.length * self.asking
        output = qkv.new_empty(batch, queries, width)
        lse = qkv.new_empty(batch, self.heads, queries, dtype=torch.float32)
        self._launch(qkv, kv, output, lse, output, qkv, backward=False)
        return output, (KeptReading(qkv, kv, output, lse),)

    def backward(self, kept: tuple[KeptReading], needs: Sequence[bool], gradient: Tensor) -> Gradients:
        qkv, kv, output, lse = kept[0]
        dqkv = torch.empty_like(qkv)
        if self.first_only:
            dqkv[..., : output.shape[2]] = 0
        self._launch(qkv, kv, output, lse, gradient, dqkv, backward=True)
        return dqkv, None

    def _launch(
        self, qkv: Tensor, kv: Tensor, output: Tensor, lse: Tensor, gradient: Tensor, dqkv: Tensor, backward: bool
    ) -> None:
        batch, rows, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        size, readers, asking = width // self.heads, rows // self.length, self.asking
        tiles = tiles_for(qkv.dtype, size, backward)
        queries = min(tiles["BLOCK_M"], max(16, 1 << (readers * asking - 1).bit_length()))
        group = max(1, queries // asking)
        shape = Shape(self.heads, size, 0, 0, 0, self.dropout)
        _READ(
            (-(-readers // group), batch * self.heads),
            (qkv, kv, self.kind, self.facts, *self.seeds, output, lse, gradient, dqkv),
            (readers, kv.shape[1], group, *factors(shape)),
            HEADS=self.heads,
            SIZE=size,
            BLOCK_D=max(16, 1 << (size - 1).bit_length()),
            KV_STRIDE=kv.stride(1),
            KV_START=kv.shape[2] - 2 * width,
            LENGTH=self.length,
            ASKING=asking,
            PRECISION=precision(qkv.dtype),
            DROPOUT=self.dropout > 0,
            BACKWARD=backward,
            **tiles | {"BLOCK_M": max(queries, 1 << (asking - 1).bit_length())},
        )


def attend_to_text(
    qkv: Tensor,
    kv: Tensor,
    pattern: AttentionPattern,
    heads: int,
    readers: int,
    first_only: bool = False,
    dropout: float = 0.0,
    rope: Angles | None = None,
) -> Tensor:
    """Attention [batch, queries, width] of readers to a text and to themselves.

    `qkv` [batch, rows, 3 width] are the projections of all their virtual tokens, `kv` [batch, tokens, 2 width] those
    of the text. `first_only`: only the first virtual token of each reader asks. With `rope`, cosine and sine of the
    text's positions, `kv` has the text's queries too, and is rotated here.
    """
    if rope is not None:
        kv = Rope.in_order(rope, heads, kv, 0).rotate(kv, kv.new_empty(len(kv), 0, 2)).view_as(kv)
    batch, rows, _ = qkv.shape
    on_device = pattern.prepared(DevicePattern.of, 0, heads)
    queries = readers if first_only else rows
    seeds = draw_dropout_seeds((batch * heads * queries, batch * kv.shape[1], batch * rows), on_device.facts, dropout)
    reading = Reading(heads, rows // readers, first_only, float(dropout), on_device.kind, on_device.facts, seeds)
    # One text may be read by the whole batch.
    found: Tensor = run(reading, qkv.contiguous(), kv.detach().expand(batch, -1, -1).contiguous())
    return found


def tiles_for(dtype: torch.dtype, size: int, backward: bool) -> dict[str, int]:
    """Measured on an H200 for 16-bit types and head sizes up to 64."""
    if INTERPRETED:
        return {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_O": 16}
    if dtype == torch.float32 or size > 64:
        return {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_O": 32, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_O": 64, "num_warps": 4, "num_stages": 2 if backward else 3}


@triton.jit(do_not_specialize=["readers", "tokens", "group", "keep_threshold"])
def read_rows(
    qkv, kv, kind, facts, query_seeds, text_seeds, own_seeds, output, lse, gradient, dqkv,
    readers, tokens, group, scale, keep_threshold, keep_scale, plain_scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, KV_STRIDE: tl.constexpr, KV_START: tl.constexpr,
    LENGTH: tl.constexpr, ASKING: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
    BACKWARD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """The queries of `group` readers. Of a reader's LENGTH virtual tokens the first ASKING have one."""
    WIDTH: tl.constexpr = HEADS * SIZE
    STRIDE: tl.constexpr = 3 * WIDTH
    lane = tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    reader = tl.program_id(0) * group
    here = tl.minimum(group, readers - reader)  # readers of this program
    queries = readers * ASKING
    place = tl.arange(0, BLOCK_M)
    is_row = place < here * ASKING
    row = reader * ASKING + place
    own = example.to(tl.int64) * readers * LENGTH
    asked = (reader + place // ASKING) * LENGTH + place % ASKING  # where a query stands in `qkv`
    rows = qkv + own * STRIDE + head * SIZE
    results = dqkv + own * STRIDE + head * SIZE
    there = lane.to(tl.int64) * queries
    outputs = output + example.to(tl.int64) * queries * WIDTH + head * SIZE
    gradients = gradient + example.to(tl.int64) * queries * WIDTH + head * SIZE
    q = load_rows(rows, asked, is_row, STRIDE, SIZE, BLOCK_D)
    seeds = tl.load(query_seeds + there + row, mask=is_row, other=0) if DROPOUT else row
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    upstream, carried, carried_too = start_rows(
        q, gradients, outputs, lse + there, lse, row, is_row, False, WIDTH, SIZE, BLOCK_D, BLOCK_M, BACKWARD
    )
    text = example.to(tl.int64) * tokens
    result, carried, carried_too = visit_sequence(
        q, upstream, result, carried, carried_too, seeds, row, kv + text * KV_STRIDE + KV_START + head * SIZE,
        text_seeds + text, kind + text, tl.load(facts + example * FACTS + FIRST),
        tl.load(facts + example * FACTS + LAST), 0, 0, 0, 0, scale, keep_threshold, keep_scale,
        KV_STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_N, False, PRECISION, DROPOUT, BACKWARD,
    )  # fmt: skip
    for start in range(0, here * LENGTH, BLOCK_O):
        slot = start + tl.arange(0, BLOCK_O)
        inside = slot < here * LENGTH
        key_row = reader * LENGTH + slot
        k = load_rows(rows + WIDTH, key_row, inside, STRIDE, SIZE, BLOCK_D)
        v = load_rows(rows + 2 * WIDTH, key_row, inside, STRIDE, SIZE, BLOCK_D)
        key_seeds = tl.load(own_seeds + own + key_row, mask=inside, other=0) if DROPOUT else slot
        scored = score(q, k, tl.where(inside, 0.0, UNSEEN), scale, PRECISION)
        scored = tl.where((place // ASKING)[:, None] == (slot // LENGTH)[None, :], scored, UNSEEN)
        result, carried, carried_too = visit(
            scored, k, v, upstream, result, carried, carried_too, seeds, key_seeds, keep_threshold, keep_scale,
            PRECISION, DROPOUT, BACKWARD,
        )  # fmt: skip
        if BACKWARD:
            dk, dv = tl.zeros([BLOCK_O, BLOCK_D], tl.float32), tl.zeros([BLOCK_O, BLOCK_D], tl.float32)
            dk, dv = receive(
                scored, v, q, upstream, carried, carried_too, seeds, key_seeds, dk, dv, keep_threshold, keep_scale,
                PRECISION, DROPOUT,
            )  # fmt: skip
            store_rows(results + WIDTH, key_row, inside, dk * plain_scale, STRIDE, SIZE, BLOCK_D)
            store_rows(results + 2 * WIDTH, key_row, inside, dv, STRIDE, SIZE, BLOCK_D)
    if BACKWARD:
        store_rows(results, asked, is_row, result * plain_scale, STRIDE, SIZE, BLOCK_D)
    else:
        finish_rows(
            result, carried, carried_too, outputs, lse + there, row, is_row, keep_scale, plain_scale,
            WIDTH, SIZE, BLOCK_D, False,
        )  # fmt: skip


_READ = TritonKernel(read_rows)

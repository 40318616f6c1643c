"""Rotary positions: turns the projections of a layer into the input of the attention kernels, in one kernel.

It can also leave out padding, so that documents are packed one after the other, as flash attention reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.modernbert import Angles
from prefixprop.attention.triton.shared import Gradients, TritonKernel


class Rope(NamedTuple):
    """Angles, `cosine` and `sine` [batch or 1, length, size], and where rows go.

    Tokens stand where `places` [batch, length] says (nowhere: -1), or in their order if it is empty; prefix rows,
    whose queries are zeros, where `prefix_places` [batch * j] says.
    """

    cosine: Tensor
    sine: Tensor
    heads: int
    shape: tuple[int, int]  # examples and their length
    places: Tensor
    prefix_places: Tensor

    @classmethod
    def in_order(cls, angles: Angles, heads: int, projected: Tensor, prefix_keys: int) -> Rope:
        """Tokens in their order, followed by the prefix rows."""
        batch, length, _ = projected.shape
        behind = torch.arange(batch * length, batch * (length + prefix_keys), device=projected.device)
        cosine, sine = angles
        return cls(cosine.contiguous(), sine.contiguous(), heads, (batch, length), behind[:0].int(), behind)

    def rotate(self, projected: Tensor, prefix: Tensor) -> Tensor:
        """Rows of query, key and value [batch * (length + j), 3 width], queries and keys of tokens rotated.

        They come from `projected` [batch, length, 3 width] and `prefix` [batch, j, 2 width], keys and values.
        """
        batch, length, width = projected.shape
        qkv = projected.new_empty(batch * (length + prefix.shape[1]), width)
        self._launch(projected, qkv, backward=False)
        if prefix.shape[1]:
            qkv[self.prefix_places] = torch.nn.functional.pad(prefix.flatten(0, 1), (prefix.shape[2] // 2, 0))
        return qkv

    def rotate_backward(
        self, dqkv: Tensor, needs_projected: bool, needs_prefix: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of `projected`, zeros for tokens that have no place, and of `prefix`."""
        width = dqkv.shape[1]
        d_projected = d_prefix = None
        if needs_prefix:
            d_prefix = dqkv[self.prefix_places][:, width // 3 :].reshape(self.shape[0], -1, 2 * width // 3)
        if needs_projected:  # not in a frozen model's first layer, if only prefix keys are trained
            d_projected = dqkv.new_empty(*self.shape, width)
            self._launch(dqkv, d_projected, backward=True)
        return d_projected, d_prefix

    def forward(self, projected: Tensor, prefix: Tensor, keeps: bool) -> tuple[Tensor, tuple[()]]:
        return self.rotate(projected, prefix), ()

    def backward(self, kept: tuple[()], needs: Sequence[bool], gradient: Tensor) -> Gradients:
        return self.rotate_backward(gradient, *needs)

    def _launch(self, source: Tensor, target: Tensor, backward: bool) -> None:
        batch, length, width = (target if backward else source).shape
        size = width // (3 * self.heads)
        block = 16 if INTERPRETED else 64
        _ROPE(
            (self.heads, -(-batch * length // block)),
            (source, target, self.cosine, self.sine, self.places),
            (batch * length, length),
            HEADS=self.heads,
            SIZE=size,
            HALF=1 << (size // 2 - 1).bit_length(),
            BLOCK=block,
            SHARED=self.cosine.shape[0] == 1,
            PLACED=self.places.numel() > 0,
            BACKWARD=backward,
        )


@triton.jit(do_not_specialize=["rows", "length"])
def rope_kernel(
    source, target, cosine, sine, places, rows, length,
    HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    SHARED: tl.constexpr, PLACED: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Rotate each pair (i, i + SIZE / 2) of queries and keys by its angle, and copy values; BACKWARD rotates back."""
    WIDTH: tl.constexpr = HEADS * SIZE
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    place = row
    exists = inside
    if PLACED:
        place = tl.load(places + row, mask=inside, other=-1)
        exists = place >= 0
    column = tl.arange(0, HALF)
    in_half = (column < SIZE // 2)[None, :]
    angle = (row % length if SHARED else row)[:, None] * SIZE + column[None, :]
    turn = tl.load(cosine + angle, mask=inside[:, None] & in_half, other=0.0).to(tl.float32)
    shift = tl.load(sine + angle, mask=inside[:, None] & in_half, other=0.0).to(tl.float32)
    if BACKWARD:
        shift = -shift
        read, written, is_written = place, row, inside
    else:
        read, written, is_written = row, place, exists
    first = source + read.to(tl.int64)[:, None] * 3 * WIDTH + tl.program_id(0) * SIZE + column[None, :]
    result = target + written.to(tl.int64)[:, None] * 3 * WIDTH + tl.program_id(0) * SIZE + column[None, :]
    for part in tl.static_range(3):
        one = tl.load(first + part * WIDTH, mask=exists[:, None] & in_half, other=0.0).to(tl.float32)
        two = tl.load(first + part * WIDTH + SIZE // 2, mask=exists[:, None] & in_half, other=0.0).to(tl.float32)
        turned, other = one, two
        if part < 2:
            turned, other = one * turn - two * shift, two * turn + one * shift
        tl.store(result + part * WIDTH, turned.to(target.dtype.element_ty), mask=is_written[:, None] & in_half)
        tl.store(
            result + part * WIDTH + SIZE // 2, other.to(target.dtype.element_ty), mask=is_written[:, None] & in_half
        )


class Move(NamedTuple):
    """Packed rows [packed, width] in their order [batch, length, width]; zeros for rows without a place."""

    places: Tensor
    packed: int  # rows

    def forward(self, rows: Tensor, keeps: bool) -> tuple[Tensor, tuple[()]]:
        moved = rows.new_empty(*self.places.shape, rows.shape[1])
        _move(rows, moved, self.places, backward=False)
        return moved, ()

    def backward(self, kept: tuple[()], needs: Sequence[bool], gradient: Tensor) -> Gradients:
        # Zeros for prefix rows, which no token occupies but which are read.
        d_rows = gradient.new_zeros(self.packed, gradient.shape[2])
        _move(gradient, d_rows, self.places, backward=True)
        return (d_rows,)


def _move(source: Tensor, target: Tensor, places: Tensor, backward: bool) -> None:
    count, width = places.numel(), source.shape[-1]
    block, columns = (16, 16) if INTERPRETED else (32, 128)
    _MOVE_ROWS(
        (-(-width // columns), -(-count // block)),
        (source, target, places),
        (count,),
        WIDTH=width,
        BLOCK=block,
        COLUMNS=columns,
        BACKWARD=backward,
    )


@triton.jit(do_not_specialize=["count"])
def move_rows(
    source, target, places, count,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = tl.load(places + row, mask=row < count, other=-1)
    exists = (place >= 0)[:, None] & (column < WIDTH)[None, :]
    inside = (row < count)[:, None] & (column < WIDTH)[None, :]
    ordered = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    placed = place.to(tl.int64)[:, None] * WIDTH + column[None, :]
    if BACKWARD:
        tl.store(target + placed, tl.load(source + ordered, mask=exists, other=0.0), mask=exists)
    else:
        tl.store(target + ordered, tl.load(source + placed, mask=exists, other=0.0), mask=inside)


_ROPE, _MOVE_ROWS = TritonKernel(rope_kernel), TritonKernel(move_rows)

"""Rotary positions: turns the projections of a layer into the input of the attention kernels, in one kernel.

It can also leave out padding, so that documents are packed one after the other, as flash attention reads them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.triton.triton_kernel import TritonKernel, function


def rope_forward(
    projected: Tensor, cosine: Tensor, sine: Tensor, prefix: Tensor, places: Tensor, prefix_places: Tensor, heads: int
) -> Tensor:
    """Rows of query, key and value [batch * (length + j), 3 width], queries and keys of tokens rotated.

    They come from `projected` [batch, length, 3 width], `cosine` and `sine` [batch or 1, length, size], and `prefix`
    [batch, j, 2 width], keys and values. Tokens stand where `places` [batch, length] says (nowhere: -1), or in their
    order if it is empty; prefix rows, whose queries are zeros, where `prefix_places` [batch * j] says.
    """
    batch, length, width = projected.shape
    qkv = projected.new_empty(batch * (length + prefix.shape[1]), width)
    _launch(projected, qkv, cosine, sine, places, heads, backward=False)
    if prefix.shape[1]:
        qkv[prefix_places] = torch.nn.functional.pad(prefix.flatten(0, 1), (prefix.shape[2] // 2, 0))
    return qkv


def rope_backward(
    gradient: Tensor, cosine: Tensor, sine: Tensor, places: Tensor, batch: int, length: int, heads: int
) -> Tensor:
    """The gradient of `projected`: zeros for tokens that have no place."""
    d_projected = gradient.new_empty(batch, length, gradient.shape[1])
    _launch(gradient, d_projected, cosine, sine, places, heads, backward=True)
    return d_projected


def _launch(
    source: Tensor, target: Tensor, cosine: Tensor, sine: Tensor, places: Tensor, heads: int, backward: bool
) -> None:
    projected = target if backward else source
    batch, length, width = projected.shape
    size = width // (3 * heads)
    block = 16 if INTERPRETED else 64
    _ROPE(
        (heads, -(-batch * length // block)),
        (source, target, cosine, sine, places),
        (batch * length, length),
        HEADS=heads,
        SIZE=size,
        HALF=1 << (size // 2 - 1).bit_length(),
        BLOCK=block,
        SHARED=cosine.shape[0] == 1,
        PLACED=places.numel() > 0,
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


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    projected, cosine, sine, prefix, places, prefix_places, ctx.heads = inputs
    ctx.save_for_backward(cosine, sine, places, prefix_places)
    ctx.shapes = projected.shape, prefix.shape


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    cosine, sine, places, prefix_places = ctx.saved_tensors
    (batch, length, width), prefix_shape = ctx.shapes
    gradient = gradient.contiguous()
    d_prefix = None
    if ctx.needs_input_grad[3]:
        d_prefix = gradient[prefix_places][:, width // 3 :].reshape(prefix_shape)
    d_projected = None
    if ctx.needs_input_grad[0]:  # not in a frozen model's first layer, if only prefix keys are trained
        d_projected = rope_backward(gradient, cosine, sine, places, batch, length, ctx.heads)
    return d_projected, None, None, d_prefix, None, None, None


def apply_rope(*arguments: Any) -> Tensor:
    return (_rope if torch.is_grad_enabled() else rope_forward)(*arguments)


def move_forward(rows: Tensor, places: Tensor) -> Tensor:
    """Packed rows [., width] in their order [batch, length, width]; zeros for rows without a place."""
    moved = rows.new_empty(*places.shape, rows.shape[1])
    _move(rows, moved, places, backward=False)
    return moved


def move_backward(gradient: Tensor, places: Tensor, count: int) -> Tensor:
    """The gradient of `count` packed rows; zeros for prefix rows, which no token occupies but which are read."""
    d_rows = gradient.new_zeros(count, gradient.shape[2])
    _move(gradient, d_rows, places, backward=True)
    return d_rows


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


def _keep_places(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.count = inputs[0].shape[0]


def _move_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (places,) = ctx.saved_tensors
    return move_backward(gradient.contiguous(), places, ctx.count), None


def move(*arguments: Any) -> Tensor:
    return (_moved if torch.is_grad_enabled() else move_forward)(*arguments)


_ROPE, _MOVE_ROWS = TritonKernel(rope_kernel), TritonKernel(move_rows)
_rope = function(rope_forward, _keep, _backward)
_moved = function(move_forward, _keep_places, _move_backward)

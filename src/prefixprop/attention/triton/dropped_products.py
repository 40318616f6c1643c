"""Narrow products with rows that are dropped out, for LoRA: each piece has a mask of its own, and none is stored.

The rows stand in memory as they are; every kernel finds the masks again (see `dropout`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.triton.dropout import is_kept, levels
from prefixprop.attention.triton.launch_attention import precision
from prefixprop.attention.triton.triton_kernel import TritonKernel

BLOCK = 16 if INTERPRETED else 64  # of rows, and of their width
SHARES = 2 if INTERPRETED else 16  # programs that divide the rows where they are summed


def descend(rows: Tensor, down: Tensor, row_words: Tensor, column_words: Tensor, dropout: float) -> Tensor:
    """[rows, pieces * rank]: for each piece, dropout(rows) Aᵀ, where `down` [pieces, rank, width] has the As."""
    pieces, rank, _ = down.shape
    lowered = rows.new_empty(len(rows), pieces * rank)
    _DESCEND(
        (_tiles(len(rows)), pieces),
        (rows, down, row_words, column_words, lowered),
        (len(rows), *levels(dropout)),
        **_constants(down),
    )
    return lowered


def down_gradient(
    for_low: Tensor, rows: Tensor, down: Tensor, row_words: Tensor, column_words: Tensor, dropout: float
) -> Tensor:
    """The gradient of `down` by that of what `descend` made, in the same order whenever it is summed."""
    pieces, _, width = down.shape
    parts = down.new_empty(SHARES, *down.shape, dtype=torch.float32)
    _DOWN_GRADIENT(
        (_tiles(width), pieces, SHARES),
        (for_low, rows, row_words, column_words, parts),
        (len(rows), *levels(dropout)),
        **_constants(down),
    )
    return parts.sum(dim=0)


def add_back(
    for_low: Tensor, down: Tensor, row_words: Tensor, column_words: Tensor, dropout: float, result: Tensor
) -> None:
    """Add to `result`, the rows' gradient, what comes through `descend`."""
    _ADD_BACK(
        (_tiles(len(result)), _tiles(down.shape[2])),
        (for_low, down, row_words, column_words, result),
        (len(result), *levels(dropout)),
        **_constants(down),
    )


def _tiles(count: int) -> int:
    return -(-count // BLOCK)


def _constants(down: Tensor) -> dict[str, Any]:
    pieces, rank, width = down.shape
    return {
        "PIECES": pieces,
        "RANK": rank,
        "BLOCK_R": 1 << (rank - 1).bit_length(),
        "WIDTH": width,
        "BLOCK": BLOCK,
        "PRECISION": precision(down.dtype),
    }


@triton.jit
def _low_tile(low, piece, row, is_row, PIECES: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr):
    """Where a piece's columns stand of what `descend` makes, and which of them are there."""
    rank = tl.arange(0, BLOCK_R)
    place = row.to(tl.int64)[:, None] * (PIECES * RANK) + piece * RANK + rank[None, :]
    return low + place, is_row[:, None] & (rank < RANK)[None, :]


@triton.jit
def _down_tile(down, piece, column, RANK: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr):
    rank = tl.arange(0, BLOCK_R)
    mask = (rank < RANK)[:, None] & (column < WIDTH)[None, :]
    return down + (piece * RANK + rank[:, None]) * WIDTH + column[None, :], mask


@triton.jit
def _kept(row_words, column_words, piece, row, is_row, column, least, WIDTH: tl.constexpr):
    row_word = tl.load(row_words + row, mask=is_row, other=0)
    column_word = tl.load(column_words + piece * WIDTH + column, mask=column < WIDTH, other=0)
    return is_kept(row_word[:, None], column_word[None, :], least)


@triton.jit
def _dropped_rows(rows, row_words, column_words, piece, row, is_row, column, least, WIDTH: tl.constexpr):
    """A tile of the rows with zeros for what is dropped; the rest has yet to grow."""
    mask = is_row[:, None] & (column < WIDTH)[None, :]
    entered = tl.load(rows + row.to(tl.int64)[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
    return tl.where(_kept(row_words, column_words, piece, row, is_row, column, least, WIDTH), entered, 0.0)


@triton.jit(do_not_specialize=["count", "least"])
def dropped_descend(
    rows, down, row_words, column_words, low, count, least, growth,
    PIECES: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(1)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < count
    summed = tl.zeros([BLOCK, BLOCK_R], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        entered = _dropped_rows(rows, row_words, column_words, piece, row, is_row, column, least, WIDTH)
        place, mask = _down_tile(down, piece, column, RANK, BLOCK_R, WIDTH)
        matrix = tl.load(place, mask=mask, other=0.0)
        summed = tl.dot(entered, tl.trans(matrix), summed, input_precision=PRECISION)
    place, mask = _low_tile(low, piece, row, is_row, PIECES, RANK, BLOCK_R)
    tl.store(place, (summed * growth).to(low.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count", "least"])
def dropped_down_gradient(
    for_low, rows, row_words, column_words, parts, count, least, growth,
    PIECES: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    piece, share = tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    summed = tl.zeros([BLOCK_R, BLOCK], tl.float32)
    for start in range(share * BLOCK, count, tl.num_programs(2) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        is_row = row < count
        entered = _dropped_rows(rows, row_words, column_words, piece, row, is_row, column, least, WIDTH)
        place, mask = _low_tile(for_low, piece, row, is_row, PIECES, RANK, BLOCK_R)
        upstream = tl.load(place, mask=mask, other=0.0)
        summed = tl.dot(tl.trans(upstream), entered, summed, input_precision=PRECISION)
    place, mask = _down_tile(parts + share * PIECES * RANK * WIDTH, piece, column, RANK, BLOCK_R, WIDTH)
    tl.store(place, summed * growth, mask=mask)


@triton.jit(do_not_specialize=["count", "least"])
def dropped_add_back(
    for_low, down, row_words, column_words, result, count, least, growth,
    PIECES: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < count
    summed = tl.zeros([BLOCK, BLOCK], tl.float32)
    for piece in range(PIECES):
        place, mask = _low_tile(for_low, piece, row, is_row, PIECES, RANK, BLOCK_R)
        upstream = tl.load(place, mask=mask, other=0.0)
        place, mask = _down_tile(down, piece, column, RANK, BLOCK_R, WIDTH)
        back = tl.dot(upstream, tl.load(place, mask=mask, other=0.0), input_precision=PRECISION)
        summed += tl.where(_kept(row_words, column_words, piece, row, is_row, column, least, WIDTH), back, 0.0)
    mask = is_row[:, None] & (column < WIDTH)[None, :]
    place = result + row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    added = tl.load(place, mask=mask, other=0.0).to(tl.float32) + summed * growth
    tl.store(place, added.to(result.dtype.element_ty), mask=mask)


_DESCEND, _ADD_BACK = TritonKernel(dropped_descend), TritonKernel(dropped_add_back)
_DOWN_GRADIENT = TritonKernel(dropped_down_gradient)

"""LoRA in fused layers: a trained side path beside frozen linear layers.

Linear layers that read the same rows share a path. The product with A (lora_down) is one operation for all of them
and is kept for backward; the product with B (lora_up) is added in place to each layer's part of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.batched_lora import BatchedLora, BatchedLoraForward, gather
from prefixprop.attention.patch import has_hooks
from prefixprop.attention.triton.launch_attention import precision
from prefixprop.attention.triton.shared import TritonKernel, draw_dropout_seeds, is_kept, levels

STEP = 16  # ranks are padded to a multiple of this, as tl.dot needs
MOST_RANK = 128  # with dropout: a program holds all of it
BLOCK = 16 if INTERPRETED else 64  # of rows, and of their width
SHARES = 2 if INTERPRETED else 16  # programs that divide the rows where they are summed


class Piece(NamedTuple):
    """What an adapter adds to a linear layer: scale · up(down(dropout(rows)))."""

    place: int  # which part of the output the layer makes
    scale: float
    dropout: float
    rank: int
    # Down, A: [rank, width of the rows], and up, B: [width of the part, rank]; or those of each document.
    matrices: tuple[Tensor, Tensor] | BatchedLora


def unwrap(linear: Any, place: int = 0) -> tuple[Any, list[Piece]] | None:
    """The plain linear layer and its LoRA; None if it is wrapped in something else, or has hooks."""
    if has_hooks(linear):
        return None
    if type(linear) is nn.Linear:
        return linear, []
    if type(linear) is not LoraLinear or type(linear.base_layer) is not nn.Linear or has_hooks(linear.base_layer):
        return None
    if "forward" in vars(linear):
        batched = BatchedLoraForward.of(linear)
        own = None if batched is None else batched.lora_of(linear)
        return None if own is None else (linear.base_layer, [Piece(place, own.scale, 0.0, own.rank, own)])
    if linear.merged or linear.disable_adapters:
        # When it is called, peft unmerges adapters that are disabled.
        return None if linear.merged and linear.disable_adapters else (linear.base_layer, [])
    pieces = [_piece(linear, name, place) for name in linear.active_adapters if name in linear.lora_A]
    whole = [piece for piece in pieces if piece is not None]
    return (linear.base_layer, whole) if len(whole) == len(pieces) else None


def _piece(linear: Any, adapter: str, place: int) -> Piece | None:
    down, up, dropout = linear.lora_A[adapter], linear.lora_B[adapter], linear.lora_dropout[adapter]
    if adapter in linear.lora_variant or type(down) is not nn.Linear or type(up) is not nn.Linear:
        return None  # DoRA, for instance
    if up.bias is not None or type(dropout) not in (nn.Dropout, nn.Identity):
        return None
    if any(map(has_hooks, (down, up, dropout))):
        return None
    probability = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    scale, rank = float(linear.scaling[adapter]), down.weight.shape[0]
    return Piece(place, scale, probability, rank, (down.weight, up.weight))


def fit_together(pieces: Sequence[Piece]) -> bool:
    """Whether all have the same dropout, and ranks that the kernels for dropout support."""
    found = {(piece.dropout, isinstance(piece.matrices, BatchedLora)) for piece in pieces}
    return len(found) <= 1 and not any(piece.dropout > 0 and piece.rank > MOST_RANK for piece in pieces)


class SidePath(NamedTuple):
    """Matrices padded to one rank, for each group of rows: a single group, or one for each document.

    `down` is [groups, pieces, rank, width of the rows], `up` [pieces, groups, width of a part, rank].
    """

    places: tuple[int, ...]
    ranks: tuple[int, ...]  # of the pieces; empty where documents have LoRA of their own: then all have the same rank
    scales: tuple[float, ...]
    dropout: float
    down: Tensor
    up: Tensor
    row_seeds: Tensor
    column_seeds: Tensor

    @classmethod
    def open(
        cls, pieces: Sequence[Piece], rows: int, dtype: torch.dtype
    ) -> tuple[SidePath | None, tuple[Tensor, ...]]:
        """The path for `rows` rows, and the tensors that get a gradient through it; None without a piece."""
        if not pieces:
            return None, ()
        of_documents = [piece.matrices for piece in pieces if isinstance(piece.matrices, BatchedLora)]
        ranks: tuple[int, ...] = ()
        leaves: tuple[Any, ...]
        if of_documents:
            leaves = gather(of_documents)
            down, up = (matrices.detach().to(dtype) for matrices in leaves)
        else:
            leaves = tuple(matrix for piece in pieces for matrix in piece.matrices)
            ranks = tuple(piece.rank for piece in pieces)
            rank = -(-max(ranks) // STEP) * STEP
            down = leaves[0].new_zeros(1, len(pieces), rank, leaves[0].shape[1], dtype=dtype)
            up = leaves[1].new_zeros(len(pieces), 1, len(leaves[1]), rank, dtype=dtype)
            for index, own in enumerate(ranks):
                down[0, index, :own] = leaves[2 * index].detach()
                up[index, 0, :, :own] = leaves[2 * index + 1].detach()
        dropout = pieces[0].dropout
        seeds = draw_dropout_seeds((rows, len(pieces) * down.shape[-1]), down, dropout)
        places, scales = tuple(piece.place for piece in pieces), tuple(piece.scale for piece in pieces)
        return cls(places, ranks, scales, dropout, down, up, *seeds), leaves

    def _by_group(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (len(self.down), -1))

    def lora_down(self, rows: Tensor) -> Tensor:
        """[rows, pieces * rank]: dropout(rows) Aᵀ of all pieces."""
        if self.dropout:
            return lora_down_with_dropout(rows, self.down[0], self.row_seeds, self.column_seeds, self.dropout)
        return torch.bmm(self._by_group(rows), self.down.flatten(1, 2).mT).flatten(0, 1)

    def low(self, lowered: Tensor, piece: int) -> Tensor:
        """A piece's columns of the result of `lora_down`, or of its gradient."""
        rank = self.down.shape[2]
        return lowered[:, piece * rank : (piece + 1) * rank]

    def lora_up(self, lowered: Tensor, piece: int, part: Tensor) -> None:
        """Add a piece's LoRA to its part of the output."""
        low = self._by_group(self.low(lowered, piece))
        self._by_group(part).baddbmm_(low, self.up[piece].mT, alpha=self.scales[piece])

    def gradients(self, lowered: Tensor, rows: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Gradients of the result of `lora_down` and of all tensors, from those of each piece's part."""
        d_low, d_ups = torch.empty_like(lowered), []
        for piece, (part, scale) in enumerate(zip(map(self._by_group, parts), self.scales, strict=True)):
            self._by_group(self.low(d_low, piece)).baddbmm_(part, self.up[piece], beta=0, alpha=scale)
            d_ups.append(torch.bmm(part.mT, self._by_group(self.low(lowered, piece))).mul_(scale))
        if self.dropout:
            seeds = (self.row_seeds, self.column_seeds)
            d_down = lora_down_gradient(d_low, rows, self.down[0], *seeds, self.dropout)[None]
        else:
            d_down = torch.bmm(self._by_group(d_low).mT, self._by_group(rows)).view_as(self.down)
        of_matrices: list[Tensor] = []
        for piece, rank in enumerate(self.ranks):
            of_matrices += [d_down[0, piece, :rank], d_ups[piece][0, :, :rank]]
        return d_low, of_matrices or [d_down, torch.stack(d_ups)]

    def add_back(self, d_low: Tensor, result: Tensor) -> None:
        """Add to the rows' gradient what comes through the path."""
        if self.dropout:
            seeds = (self.row_seeds, self.column_seeds)
            add_lora_gradient(d_low, self.down[0], *seeds, self.dropout, result)
        else:
            self._by_group(result).baddbmm_(self._by_group(d_low), self.down.flatten(1, 2))


def add_side(path: SidePath | None, rows: Tensor, output: Tensor) -> Tensor | None:
    """Add the LoRA of a single linear layer to its output; returns the result of `lora_down`, for backward."""
    if path is None:
        return None
    flat, lowered = output.flatten(0, -2), path.lora_down(rows.flatten(0, -2))
    for piece in range(len(path.places)):
        path.lora_up(lowered, piece, flat)
    return lowered


def side_gradients(
    path: SidePath | None, lowered: Tensor | None, rows: Tensor, gradient: Tensor, result: Tensor | None
) -> list[Tensor]:
    """Gradients of a single layer's matrices from that of its output; adds to `result`, the rows' gradient."""
    if path is None or lowered is None:
        return []
    d_low, found = path.gradients(lowered, rows, [gradient] * len(path.places))
    if result is not None:
        path.add_back(d_low, result)
    return found


# With dropout, each piece has a mask of its own. The masks are never stored: every kernel computes them again.


def lora_down_with_dropout(
    rows: Tensor, down: Tensor, row_seeds: Tensor, column_seeds: Tensor, dropout: float
) -> Tensor:
    """[rows, pieces * rank]: for each piece, dropout(rows) Aᵀ, where `down` [pieces, rank, width] has the As."""
    pieces, rank, _ = down.shape
    lowered = rows.new_empty(len(rows), pieces * rank)
    _LORA_DOWN(
        (_tiles(len(rows)), pieces),
        (rows, down, row_seeds, column_seeds, lowered),
        (len(rows), *levels(dropout)),
        **_constants(down),
    )
    return lowered


def lora_down_gradient(
    d_low: Tensor, rows: Tensor, down: Tensor, row_seeds: Tensor, column_seeds: Tensor, dropout: float
) -> Tensor:
    """The gradient of `down` from that of the result; always summed in the same order."""
    pieces, _, width = down.shape
    parts = down.new_empty(SHARES, *down.shape, dtype=torch.float32)
    _DOWN_GRADIENT(
        (_tiles(width), pieces, SHARES),
        (d_low, rows, row_seeds, column_seeds, parts),
        (len(rows), *levels(dropout)),
        **_constants(down),
    )
    return parts.sum(dim=0)


def add_lora_gradient(
    d_low: Tensor, down: Tensor, row_seeds: Tensor, column_seeds: Tensor, dropout: float, result: Tensor
) -> None:
    """Add to `result`, the rows' gradient, what comes through `lora_down`."""
    _ADD_BACK(
        (_tiles(len(result)), _tiles(down.shape[2])),
        (d_low, down, row_seeds, column_seeds, result),
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
    """The addresses of a piece's columns in the result of `lora_down`, and their mask."""
    rank = tl.arange(0, BLOCK_R)
    place = row.to(tl.int64)[:, None] * (PIECES * RANK) + piece * RANK + rank[None, :]
    return low + place, is_row[:, None] & (rank < RANK)[None, :]


@triton.jit
def _down_tile(down, piece, column, RANK: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr):
    rank = tl.arange(0, BLOCK_R)
    mask = (rank < RANK)[:, None] & (column < WIDTH)[None, :]
    return down + (piece * RANK + rank[:, None]) * WIDTH + column[None, :], mask


@triton.jit
def _kept(row_seeds, column_seeds, piece, row, is_row, column, keep_threshold, WIDTH: tl.constexpr):
    row_seed = tl.load(row_seeds + row, mask=is_row, other=0)
    column_seed = tl.load(column_seeds + piece * WIDTH + column, mask=column < WIDTH, other=0)
    return is_kept(row_seed[:, None], column_seed[None, :], keep_threshold)


@triton.jit
def _dropped_rows(rows, row_seeds, column_seeds, piece, row, is_row, column, keep_threshold, WIDTH: tl.constexpr):
    """A tile of the rows with zeros for what is dropped; the rest is not scaled yet."""
    mask = is_row[:, None] & (column < WIDTH)[None, :]
    entered = tl.load(rows + row.to(tl.int64)[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
    return tl.where(_kept(row_seeds, column_seeds, piece, row, is_row, column, keep_threshold, WIDTH), entered, 0.0)


@triton.jit(do_not_specialize=["count", "keep_threshold"])
def dropped_lora_down(
    rows, down, row_seeds, column_seeds, low, count, keep_threshold, keep_scale,
    PIECES: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(1)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < count
    summed = tl.zeros([BLOCK, BLOCK_R], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        entered = _dropped_rows(rows, row_seeds, column_seeds, piece, row, is_row, column, keep_threshold, WIDTH)
        place, mask = _down_tile(down, piece, column, RANK, BLOCK_R, WIDTH)
        matrix = tl.load(place, mask=mask, other=0.0)
        summed = tl.dot(entered, tl.trans(matrix), summed, input_precision=PRECISION)
    place, mask = _low_tile(low, piece, row, is_row, PIECES, RANK, BLOCK_R)
    tl.store(place, (summed * keep_scale).to(low.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count", "keep_threshold"])
def dropped_down_gradient(
    d_low, rows, row_seeds, column_seeds, parts, count, keep_threshold, keep_scale,
    PIECES: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    piece, share = tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    summed = tl.zeros([BLOCK_R, BLOCK], tl.float32)
    for start in range(share * BLOCK, count, tl.num_programs(2) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        is_row = row < count
        entered = _dropped_rows(rows, row_seeds, column_seeds, piece, row, is_row, column, keep_threshold, WIDTH)
        place, mask = _low_tile(d_low, piece, row, is_row, PIECES, RANK, BLOCK_R)
        upstream = tl.load(place, mask=mask, other=0.0)
        summed = tl.dot(tl.trans(upstream), entered, summed, input_precision=PRECISION)
    place, mask = _down_tile(parts + share * PIECES * RANK * WIDTH, piece, column, RANK, BLOCK_R, WIDTH)
    tl.store(place, summed * keep_scale, mask=mask)


@triton.jit(do_not_specialize=["count", "keep_threshold"])
def dropped_add_back(
    d_low, down, row_seeds, column_seeds, result, count, keep_threshold, keep_scale,
    PIECES: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < count
    summed = tl.zeros([BLOCK, BLOCK], tl.float32)
    for piece in range(PIECES):
        place, mask = _low_tile(d_low, piece, row, is_row, PIECES, RANK, BLOCK_R)
        upstream = tl.load(place, mask=mask, other=0.0)
        place, mask = _down_tile(down, piece, column, RANK, BLOCK_R, WIDTH)
        back = tl.dot(upstream, tl.load(place, mask=mask, other=0.0), input_precision=PRECISION)
        summed += tl.where(
            _kept(row_seeds, column_seeds, piece, row, is_row, column, keep_threshold, WIDTH), back, 0.0
        )
    mask = is_row[:, None] & (column < WIDTH)[None, :]
    place = result + row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    added = tl.load(place, mask=mask, other=0.0).to(tl.float32) + summed * keep_scale
    tl.store(place, added.to(result.dtype.element_ty), mask=mask)


_LORA_DOWN, _ADD_BACK = TritonKernel(dropped_lora_down), TritonKernel(dropped_add_back)
_DOWN_GRADIENT = TritonKernel(dropped_down_gradient)

"""LayerNorm(dropout(update) + residual) in one kernel, forward and backward; it can also return the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.triton.shared import Gradients, TritonKernel, draw_dropout_seeds, is_kept, levels, run

ROWS = 4  # of a program at a time
PROGRAMS = 3 if INTERPRETED else 1024  # that share all rows where the norm is trained; each sums gradients


def residual_norm(update: Tensor, residual: Tensor, norm: torch.nn.LayerNorm, dropout: float) -> Tensor:
    """`norm(dropout(update) + residual)`."""
    return _sum_and_norm(update, residual, norm, float(dropout), returns_sum=False)[0]


def sum_and_norm(update: Tensor, residual: Tensor, norm: torch.nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """`update + residual`, and `norm` of that; the norm may lack a bias."""
    normed, total = _sum_and_norm(update, residual, norm, 0.0, returns_sum=True)
    return total, normed


def _sum_and_norm(
    update: Tensor, residual: Tensor, norm: torch.nn.LayerNorm, dropout: float, returns_sum: bool
) -> tuple[Tensor, Tensor]:
    width = residual.shape[-1]
    seeds = draw_dropout_seeds((residual.numel() // width, width), norm.weight, dropout)
    step = _SumAndNorm(ResidualNorm(norm.weight, norm.bias, norm.eps, dropout, *seeds), update.dtype, returns_sum)
    return run(step, update.contiguous(), residual.contiguous(), norm.weight, norm.bias)


class ResidualNorm(NamedTuple):
    """A norm with the dropout in front of it; without dropout, the seeds are not read."""

    weight: Tensor
    bias: Tensor | None
    epsilon: float
    dropout: float
    row_seeds: Tensor
    column_seeds: Tensor

    def normalise(self, update: Tensor, residual: Tensor, keeps_sum: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The result, the sum that was normalised, and its rows' mean and 1/σ; the last two only if they are kept."""
        width = residual.shape[-1]
        rows = residual.numel() // width
        result = torch.empty_like(residual)
        total = torch.empty_like(residual) if keeps_sum else residual.new_empty(0)
        moments = residual.new_empty(rows if keeps_sum else 0, 2, dtype=torch.float32)
        bias = self.weight if self.bias is None else self.bias
        _NORMALISE(
            (-(-rows // ROWS),),
            (update, residual, self.weight, bias, self.row_seeds, self.column_seeds, result, total, moments),
            (rows, *levels(self.dropout), self.epsilon),
            WIDTH=width,
            BLOCK=1 << (width - 1).bit_length(),
            ROWS=ROWS,
            DROPOUT=self.dropout > 0,
            KEEPS_SUM=keeps_sum,
            BIAS=self.bias is not None,
        )
        return result, total, moments

    def gradients(
        self, gradient: Tensor, total: Tensor, moments: Tensor, d_total: Tensor | None = None, trains: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the residual and of the update; and if it `trains`, parts [programs, 2, width] of the sums
        that are the gradients of weight and bias. `d_total` is what the sum gets from elsewhere."""
        d_residual = torch.empty_like(total)
        d_update = torch.empty_like(total) if self.dropout else total.new_empty(0)
        sums = total.new_empty(PROGRAMS if trains else 0, 2, total.shape[-1], dtype=torch.float32)
        more = gradient if d_total is None else d_total
        width = total.shape[-1]
        rows = total.numel() // width
        kernel, programs = (_DIFFERENTIATE_ALL, PROGRAMS) if trains else (_DIFFERENTIATE, -(-rows // ROWS))
        kernel(
            (programs,),
            (
                gradient,
                more,
                total,
                moments,
                self.weight,
                self.row_seeds,
                self.column_seeds,
                d_residual,
                d_update,
                sums,
            ),
            (rows, *levels(self.dropout)),
            WIDTH=width,
            BLOCK=1 << (width - 1).bit_length(),
            ROWS=ROWS,
            DROPOUT=self.dropout > 0,
            MORE=d_total is not None,
        )
        return d_residual, d_update if self.dropout else d_residual, sums


class _KeptSum(NamedTuple):
    total: Tensor
    moments: Tensor


class _SumAndNorm(NamedTuple):
    """The norm of the sum, and the sum, as an operation."""

    norm: ResidualNorm
    update_type: torch.dtype
    returns_sum: bool

    def forward(
        self, update: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, keeps: bool
    ) -> tuple[tuple[Tensor, Tensor], tuple[_KeptSum]]:
        result, total, moments = self.norm.normalise(update, residual, keeps_sum=keeps or self.returns_sum)
        return (result, total), (_KeptSum(total, moments),)

    def backward(
        self, kept: tuple[_KeptSum], needs: Sequence[bool], d_normed: Tensor | None, d_total: Tensor | None
    ) -> Gradients:
        (total, moments), weight = kept[0], self.norm.weight
        d_normed = torch.zeros_like(total) if d_normed is None else d_normed
        trains = any(needs[2:])
        d_residual, d_update, sums = self.norm.gradients(d_normed, total, moments, d_total, trains)
        d_weight, d_bias = sums.sum(dim=0).to(weight.dtype) if trains else (None, None)
        # Under autocast the types differ.
        return d_update.to(self.update_type), d_residual, d_weight, None if self.norm.bias is None else d_bias


@triton.jit(do_not_specialize=["rows", "keep_threshold"])
def _normalise(
    update, residual, weight, bias, row_seeds, column_seeds, result, total, moments,
    rows, keep_threshold, keep_scale, epsilon,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr, KEEPS_SUM: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    added = tl.load(update + place, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        added = tl.where(
            _kept(row_seeds, column_seeds, row, column, rows, keep_threshold, WIDTH), added * keep_scale, 0.0
        )
    summed = added + tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    # Backward uses the stored (rounded) sum, so forward normalises the same.
    stored = summed.to(result.dtype.element_ty)
    if KEEPS_SUM:
        tl.store(total + place, stored, mask=inside)
    summed = stored.to(tl.float32)
    mean = tl.sum(summed, axis=1) / WIDTH
    centred = tl.where(inside, summed - mean[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + epsilon)
    if KEEPS_SUM:
        tl.store(moments + row * 2, mean, mask=row < rows)
        tl.store(moments + row * 2 + 1, inverse, mask=row < rows)
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    normed = centred * inverse[:, None] * scale[None, :]
    if BIAS:
        normed += tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
    tl.store(result + place, normed.to(result.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "keep_threshold"])
def _differentiate(
    gradient, d_total, total, moments, weight, row_seeds, column_seeds, d_residual, d_update, sums,
    rows, keep_threshold, keep_scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    _rows_back(
        tl.program_id(0) * ROWS, gradient, d_total, total, moments, weight, row_seeds, column_seeds, d_residual,
        d_update, rows, keep_threshold, keep_scale, WIDTH, BLOCK, ROWS, DROPOUT, MORE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "keep_threshold"])
def _differentiate_all(
    gradient, d_total, total, moments, weight, row_seeds, column_seeds, d_residual, d_update, sums,
    rows, keep_threshold, keep_scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    d_weight, d_bias = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        arriving, normed = _rows_back(
            start, gradient, d_total, total, moments, weight, row_seeds, column_seeds, d_residual, d_update,
            rows, keep_threshold, keep_scale, WIDTH, BLOCK, ROWS, DROPOUT, MORE,
        )  # fmt: skip
        d_weight += tl.sum(arriving * normed, axis=0)
        d_bias += tl.sum(arriving, axis=0)
    sums += tl.program_id(0) * 2 * WIDTH + column
    tl.store(sums, d_weight, mask=column < WIDTH)
    tl.store(sums + WIDTH, d_bias, mask=column < WIDTH)


@triton.jit
def _rows_back(
    start, gradient, d_total, total, moments, weight, row_seeds, column_seeds, d_residual, d_update,
    rows, keep_threshold, keep_scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of some rows; returns their upstream gradient and the normalised rows."""
    row = start + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    mean = tl.load(moments + row * 2, mask=row < rows, other=0.0)
    inverse = tl.load(moments + row * 2 + 1, mask=row < rows, other=0.0)
    normed = (tl.load(total + place, mask=inside, other=0.0).to(tl.float32) - mean[:, None]) * inverse[:, None]
    normed = tl.where(inside, normed, 0.0)
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    arriving = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    scaled = arriving * scale[None, :]
    along = tl.sum(scaled * normed, axis=1) / WIDTH
    mean_gradient = tl.sum(scaled, axis=1) / WIDTH
    back = (scaled - mean_gradient[:, None] - normed * along[:, None]) * inverse[:, None]
    if MORE:
        back += tl.load(d_total + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(d_residual + place, back.to(d_residual.dtype.element_ty), mask=inside)
    if DROPOUT:
        back = tl.where(
            _kept(row_seeds, column_seeds, row, column, rows, keep_threshold, WIDTH), back * keep_scale, 0.0
        )
        tl.store(d_update + place, back.to(d_update.dtype.element_ty), mask=inside)
    return arriving, normed


@triton.jit
def _kept(row_seeds, column_seeds, row, column, rows, keep_threshold, WIDTH: tl.constexpr):
    row_seed = tl.load(row_seeds + row, mask=row < rows, other=0)
    column_seed = tl.load(column_seeds + column, mask=column < WIDTH, other=0)
    return is_kept(row_seed[:, None], column_seed[None, :], keep_threshold)


_NORMALISE, _DIFFERENTIATE = TritonKernel(_normalise), TritonKernel(_differentiate)
_DIFFERENTIATE_ALL = TritonKernel(_differentiate_all)

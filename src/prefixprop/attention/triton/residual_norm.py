"""LayerNorm(dropout(update) + residual) in one kernel, forward and backward; it can also return the sum."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.triton.dropout import draw_dropout_seeds, is_kept, levels
from prefixprop.attention.triton.triton_kernel import TritonKernel, function

ROWS = 4  # of a program at a time
PROGRAMS = 3 if INTERPRETED else 1024  # that share all rows where the norm is trained; each sums gradients


def residual_norm(update: Tensor, residual: Tensor, norm: torch.nn.LayerNorm, dropout: float) -> Tensor:
    """`norm(dropout(update) + residual)`."""
    width = residual.shape[-1]
    row_seeds, column_seeds = draw_dropout_seeds((residual.numel() // width, width), norm.weight, dropout)
    learns = any(tensor.requires_grad for tensor in (update, residual, norm.weight, norm.bias))
    keeps_sum = torch.is_grad_enabled() and learns
    run: Any = _residual_norm if keeps_sum else normalise
    return run(
        update.contiguous(), residual.contiguous(), norm.weight, norm.bias, row_seeds, column_seeds,
        norm.eps, float(dropout), keeps_sum,
    )[0]  # fmt: skip


def sum_and_norm(update: Tensor, residual: Tensor, norm: torch.nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """`update + residual`, and `norm` of that; the norm may lack a bias."""
    run = _sum_and_norm if torch.is_grad_enabled() else _normed_and_sum
    normed, total, *_ = run(update.contiguous(), residual.contiguous(), norm.weight, norm.bias, norm.eps)
    return total, normed


def normalise(
    update: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, row_seeds: Tensor, column_seeds: Tensor,
    epsilon: float, dropout: float, keeps_sum: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The result, the sum that was normalised, and its rows' mean and 1/σ; the last two only if they are kept."""
    width = residual.shape[-1]
    rows = residual.numel() // width
    result = torch.empty_like(residual)
    total = torch.empty_like(residual) if keeps_sum else residual.new_empty(0)
    moments = residual.new_empty(rows if keeps_sum else 0, 2, dtype=torch.float32)
    _NORMALISE(
        (-(-rows // ROWS),),
        (update, residual, weight, weight if bias is None else bias, row_seeds, column_seeds, result, total, moments),
        (rows, *levels(dropout), epsilon),
        WIDTH=width,
        BLOCK=1 << (width - 1).bit_length(),
        ROWS=ROWS,
        DROPOUT=dropout > 0,
        KEEPS_SUM=keeps_sum,
        BIAS=bias is not None,
    )
    return result, total, moments


def _keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    update, _, weight, _, row_seeds, column_seeds, _, ctx.dropout, _ = inputs
    ctx.update_type = update.dtype
    ctx.save_for_backward(output[1], output[2], weight, row_seeds, column_seeds)
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 9
    total, moments, weight, row_seeds, column_seeds = ctx.saved_tensors
    trains_weight, trains_bias = ctx.needs_input_grad[2:4]
    trains_norm = trains_weight or trains_bias
    residual, update, sums = gradients(
        gradient.contiguous(), total, moments, weight, row_seeds, column_seeds, trains_norm, ctx.dropout
    )
    update = (update if ctx.dropout else residual).to(ctx.update_type)  # under autocast they differ
    d_weight, d_bias = sums.sum(dim=0).to(weight.dtype) if trains_norm else (None, None)
    return (update, residual, d_weight if trains_weight else None, d_bias if trains_bias else None, *(None,) * 5)


def _normed_and_sum(
    update: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, tuple[Tensor]]:
    normed, total, moments = normalise(update, residual, weight, bias, weight, weight, epsilon, 0.0, True)
    return normed, total, (moments,)


def _keep_both(ctx: Any, inputs: tuple, output: tuple) -> None:
    update, _, weight, bias, _ = inputs
    ctx.update_type, ctx.has_bias = update.dtype, bias is not None
    ctx.save_for_backward(output[1], *output[2], weight)


def _backward_of_both(ctx: Any, d_normed: Tensor, d_total: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    total, moments, weight = ctx.saved_tensors
    trains_norm = any(ctx.needs_input_grad[2:4])
    found, sums = gradients(
        d_normed.contiguous(), total, moments, weight, weight, weight, trains_norm, 0.0, d_total.contiguous()
    )[::2]
    d_weight, d_bias = sums.sum(dim=0).to(weight.dtype) if trains_norm else (None, None)
    return found.to(ctx.update_type), found, d_weight, d_bias if ctx.has_bias else None, None


def gradients(
    gradient: Tensor, total: Tensor, moments: Tensor, weight: Tensor, row_seeds: Tensor, column_seeds: Tensor,
    trains_norm: bool, dropout: float, d_total: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the residual, of the update, if it differs from that, and parts [programs, 2, width] of the sums
    that are the gradients of the norm's weight and bias, if these are wanted. `for_total` is what the sum gets from
    elsewhere."""
    results = (
        torch.empty_like(total),
        torch.empty_like(total) if dropout else total.new_empty(0),
        total.new_empty(PROGRAMS if trains_norm else 0, 2, total.shape[-1], dtype=torch.float32),
    )
    width = total.shape[-1]
    rows = total.numel() // width
    kernel, programs = (_DIFFERENTIATE_ALL, PROGRAMS) if trains_norm else (_DIFFERENTIATE, -(-rows // ROWS))
    kernel(
        (programs,),
        (gradient, gradient if d_total is None else d_total, total, moments, weight, row_seeds, column_seeds,
         *results),
        (rows, *levels(dropout)),
        WIDTH=width,
        BLOCK=1 << (width - 1).bit_length(),
        ROWS=ROWS,
        DROPOUT=dropout > 0,
        MORE=d_total is not None,
    )  # fmt: skip
    return results


_residual_norm = function(normalise, _keep, _backward)
_sum_and_norm = function(_normed_and_sum, _keep_both, _backward_of_both)


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

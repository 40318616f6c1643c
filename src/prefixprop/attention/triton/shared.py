"""What kernels share: how they are launched, the layout of buffers, how a tile visits the keys it sees, and dropout.

A layer's projections are in two buffers with one row per token: `qkv` [rows, 3, heads, size] holds query, key and
value, and `kv_global` [rows, 2, heads, size] the key and value that global rows see. `qkv` also holds the query of a
global row, in place of its local query, which is unused. Where global rows share the projections of all rows,
`kv_global` is a part of `qkv`, so kernels are given its stride. Prefix keys and values (Eq. 2) are extra rows behind
all tokens.

Forward and the gradient of the queries visit the same keys, so the same functions do both. From tile to tile they
carry (attention so far, total, highest score) forward, and (gradient so far, lse, delta = Σ P dP) backward.

Dropout's masks are computed from random seeds and not stored; backward computes the same ones.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Gradients = tuple[Tensor | None, ...]
LEVELS = 2**32  # of dropout's random numbers
# Finite, so that a row that has seen nothing yet has no NaN; the first visible key outweighs what came before.
UNSEEN = tl.constexpr(-1.0e30)
# Kinds of tokens.
LOCAL, GLOBAL, MASKED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# Facts about an example: its first token that is not padding, the end of its last one, how many tokens are global,
# how many keys are always visible, and how many tokens at its front are all global.
FIRST, LAST, TOKENS, ALWAYS_VISIBLE, LEADING, FACTS = (
    tl.constexpr(number) for number in range(6)
)  # FACTS: their number


# --- how kernels are launched, and how PyTorch differentiates steps that are made of them ---------------------------


class TritonKernel:
    """A Triton function with a faster launch: Triton's own takes longer than many kernels run.

    Triton inspects every argument at every launch, because the value of a number may matter. Here it never does (see
    `do_not_specialize`), so types, alignment and constants identify the compiled kernel, at any length.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self._compiled: dict[tuple, tuple[Any, tuple]] = {}

    def __call__(
        self, grid: tuple[int, ...], tensors: tuple[Tensor, ...], numbers: tuple[int | float, ...], **constants: Any
    ) -> None:
        """Constants are the constexpr parameters and Triton's launch options; all parameters come in this order."""
        if not isinstance(self.function, triton.runtime.JITFunction):  # interpreted
            self.function[grid](*tensors, *numbers, **constants)
            return
        device = tensors[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():  # on which Triton launches
            with torch.cuda.device(device):
                return self(grid, tensors, numbers, **constants)
        key = (
            device,
            tuple(constants.values()),
            *[(tensor.dtype, tensor.data_ptr() % 16) for tensor in tensors],
        )
        if (found := self._compiled.get(key)) is None:
            compiled = self.function[grid](*tensors, *numbers, **constants)
            in_order = tuple(constants[name] for name in self.function.arg_names if name in constants)
            self._compiled[key] = compiled, in_order
            return
        compiled, in_order = found
        compiled[(*grid, 1, 1)[:3]](*tensors, *numbers, *in_order)


class _Operation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: Any, *tensors: Tensor | None) -> Any:
        output, kept = step.forward(*tensors, keeps=True)
        ctx.step, ctx.kinds = step, [*map(type, kept)]
        ctx.save_for_backward(*itertools.chain.from_iterable(kept))
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        if all(gradient is None for gradient in gradients):  # not `count`, which compares tensors
            return (None,) * len(ctx.needs_input_grad)
        saved = iter(ctx.saved_tensors)
        kept = [kind(*itertools.islice(saved, len(kind._fields))) for kind in ctx.kinds]
        whole = [None if gradient is None else gradient.contiguous() for gradient in gradients]
        return None, *ctx.step.backward(kept, ctx.needs_input_grad[1:], *whole)


def run(step: Any, *tensors: Tensor | None) -> Any:
    """The output of a step; through autograd only if something learns, which saves the host time.

    A step has `forward(*tensors, keeps)`, which returns its output, and named tuples of tensors for backward if it
    `keeps` any; and `backward(kept, needs, *gradients)`, which returns the gradients of `tensors`. Whatever needs no
    gradient is a part of the step itself.
    """
    learns = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return _Operation.apply(step, *tensors) if learns else step.forward(*tensors, keeps=False)[0]


# --- what kernels call ----------------------------------------------------------------------------------------------


@triton.jit
def load_rows(start, row, inside, STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr):
    """[rows, head size] of one head; rows outside are zeros."""
    column = tl.arange(0, BLOCK_D)
    mask = inside[:, None] if SIZE == BLOCK_D else inside[:, None] & (column < SIZE)[None, :]
    return tl.load(start + row[:, None] * STRIDE + column[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(start, row, inside, values, STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr):
    column = tl.arange(0, BLOCK_D)
    mask = inside[:, None] if SIZE == BLOCK_D else inside[:, None] & (column < SIZE)[None, :]
    tl.store(start + row[:, None] * STRIDE + column[None, :], values.to(start.dtype.element_ty), mask=mask)


@triton.jit
def score(q, k, bias, scale, PRECISION: tl.constexpr):
    """Scores in units of log 2, for exp2; `bias` is one number per key."""
    return tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + bias[None, :]


@triton.jit
def visit(
    scored, k, v, gradient, result, first, second, row_seeds, column_seeds, keep_threshold, keep_scale,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """A tile of rows visits a tile of keys."""
    if BACKWARD:
        weights = tl.exp2(scored - first[:, None])
        dp = tl.dot(gradient, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            dp = tl.where(is_kept(row_seeds[:, None], column_seeds[None, :], keep_threshold), dp * keep_scale, 0.0)
        ds = weights * (dp - second[:, None])
        result = tl.dot(ds.to(k.dtype), k, result, input_precision=PRECISION)
    else:
        highest = tl.maximum(second, tl.max(scored, axis=1))
        shrink = tl.exp2(second - highest)
        weights = tl.exp2(scored - highest[:, None])
        first = first * shrink + tl.sum(weights, axis=1)
        second = highest
        if DROPOUT:  # drops probabilities, but not from their total
            weights = tl.where(is_kept(row_seeds[:, None], column_seeds[None, :], keep_threshold), weights, 0.0)
        result = result * shrink[:, None]
        result = tl.dot(weights.to(v.dtype), v, result, input_precision=PRECISION)
    return result, first, second


@triton.jit
def visit_rows(
    q, gradient, result, first, second, row_seeds, keys, column_seeds, rows, count,
    scale, keep_threshold, keep_scale,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Visit the keys and values in the `count` rows that `rows` lists."""
    for place in range(0, count, BLOCK):
        slot = place + tl.arange(0, BLOCK)
        inside = slot < count
        key_row = tl.load(rows + slot, mask=inside, other=0).to(tl.int64)
        k = load_rows(keys, key_row, inside, STRIDE, SIZE, BLOCK_D)
        v = load_rows(keys + WIDTH, key_row, inside, STRIDE, SIZE, BLOCK_D)
        seeds = tl.load(column_seeds + key_row) if DROPOUT else slot
        scored = score(q, k, tl.where(inside, 0.0, UNSEEN), scale, PRECISION)
        result, first, second = visit(
            scored, k, v, gradient, result, first, second, row_seeds, seeds, keep_threshold, keep_scale,
            PRECISION, DROPOUT, BACKWARD,
        )  # fmt: skip
    return result, first, second


@triton.jit
def visit_sequence(
    q, gradient, result, first, second, row_seeds, row, keys, column_seeds, kind, low, high, inner_low,
    inner_high, outside, reach, scale, keep_threshold, keep_scale,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    BAND: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Visit tokens `low` to `high`: local ones within reach (BAND), or all but padding and the `outside` prefix.

    Tiles of a band between `inner_low` and `inner_high` are within reach of every row.
    """
    for place in range(low, high, BLOCK):
        column = place + tl.arange(0, BLOCK)
        inside = column < high
        if BAND:
            seen = tl.load(kind + column, mask=inside, other=GLOBAL) == LOCAL
        else:
            seen = tl.load(kind + column, mask=inside & (column >= outside), other=MASKED) != MASKED
        k = load_rows(keys, column, inside, STRIDE, SIZE, BLOCK_D)
        v = load_rows(keys + WIDTH, column, inside, STRIDE, SIZE, BLOCK_D)
        seeds = tl.load(column_seeds + column, mask=inside, other=0) if DROPOUT else column
        scored = score(q, k, tl.where(seen, 0.0, UNSEEN), scale, PRECISION)
        if BAND and ((place < inner_low) | (place + BLOCK > inner_high)):
            scored = tl.where(tl.abs(row[:, None] - column[None, :]) <= reach, scored, UNSEEN)
        result, first, second = visit(
            scored, k, v, gradient, result, first, second, row_seeds, seeds, keep_threshold, keep_scale,
            PRECISION, DROPOUT, BACKWARD,
        )  # fmt: skip
    return result, first, second


@triton.jit
def share_of(count, BLOCK: tl.constexpr):
    """How a head's programs divide `count` rows: the tile of BLOCK rows where one begins, its part, and the parts.

    Few tiles are cut into parts (of the keys they visit), so that all programs have work; many are taken in turns.
    """
    tiles = tl.cdiv(count, BLOCK)
    parts = tl.maximum(tl.num_programs(0) // tl.maximum(tiles, 1), 1)
    return tl.program_id(0) // parts, tl.program_id(0) % parts, parts


@triton.jit
def part_of(low, high, part, parts, BLOCK: tl.constexpr):
    """One of `parts` equal pieces of a range, in whole tiles."""
    step = tl.cdiv(tl.cdiv(high - low, parts), BLOCK) * BLOCK
    begin = low + part * step
    return begin, tl.minimum(begin + step, high)


@triton.jit
def is_last(arrivals, parts):
    """Whether all other programs of a tile have stored their part; then resets the counter."""
    tl.debug_barrier()
    last = tl.atomic_add(arrivals, 1, sem="acq_rel") == parts - 1
    if last:
        tl.atomic_xchg(arrivals, 0, sem="acq_rel")
    return last


@triton.jit
def reach_of(start, size, reach, first, last):
    """Where a tile's neighbourhood begins and ends, and the part of it that every row of the tile sees."""
    low, high = tl.maximum(start - reach, first), tl.minimum(start + size + reach, last)
    return low, high, start + size - 1 - reach, start + reach + 1


def draw_dropout_seeds(counts: tuple[int, ...], like: Tensor, dropout: float) -> list[Tensor]:
    """Random 32-bit seeds for `counts` rows or columns, from PyTorch's generator; `like` for each without dropout."""
    if not dropout:
        return [like] * len(counts)  # kernels need an address, which they do not read
    # One draw for all, each aligned to 16 bytes, as kernels are compiled for.
    ends = list(itertools.accumulate(-(-count // 4) * 4 for count in counts))
    seeds = torch.randint(-LEVELS // 2, LEVELS // 2, (ends[-1],), dtype=torch.int32, device=like.device)
    return [seeds[start : start + count] for start, count in zip([0, *ends], counts, strict=False)]


def levels(probability: float) -> tuple[int, float]:
    """keep_threshold, the smallest 32-bit number that is kept, and keep_scale, the factor for what is kept."""
    dropped = min(round(probability * LEVELS), LEVELS - 1)
    return dropped - LEVELS // 2, LEVELS / (LEVELS - dropped)


@triton.jit
def is_kept(row_seeds, column_seeds, keep_threshold):
    """Whether each pair of a row and a column is kept.

    To draw a random number for every probability would cost more than the attention itself. The two seeds are random
    already; the multiplication breaks the dependence that is left between the corners of a rectangle.
    """
    return (row_seeds ^ column_seeds) * -1640531535 >= keep_threshold  # 2³² / golden ratio, made odd

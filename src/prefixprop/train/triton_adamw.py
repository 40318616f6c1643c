"""AdamW of readers in one kernel for each parameter, which also clips the gradient."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.triton.shared import TritonKernel

BLOCK = 16 if INTERPRETED else 1024


def update(
    tensors: tuple[Tensor, ...],
    rates: Tensor,
    scales: Tensor,
    decay: float,
    betas: tuple[float, float],
    epsilon: float,
    steps: int,
) -> None:
    """A step of one parameter: itself, its gradient, and the moments, each [readers, ...]."""
    readers, size = len(rates), tensors[0].numel() // len(rates)
    _UPDATE(
        (-(-size // BLOCK), readers),
        (*tensors, rates, scales),
        (size, decay, 1 - betas[0] ** steps, 1 - betas[1] ** steps),
        BETA_1=betas[0],
        BETA_2=betas[1],
        EPSILON=epsilon,
        BLOCK=BLOCK,
    )


@triton.jit(do_not_specialize=["size"])
def adamw(
    parameter, gradient, mean, square, rates, scales, size, decay, correction_1, correction_2,
    BETA_1: tl.constexpr, BETA_2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    reader = tl.program_id(1)
    rate, scale = tl.load(rates + reader), tl.load(scales + reader)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    place = reader.to(tl.int64) * size + column
    g = tl.load(gradient + place, mask=inside, other=0.0) * scale
    m = tl.load(mean + place, mask=inside, other=0.0)
    v = tl.load(square + place, mask=inside, other=0.0)
    p = tl.load(parameter + place, mask=inside, other=0.0)
    m += (1 - BETA_1) * (g - m)
    v = BETA_2 * v + (1 - BETA_2) * g * g
    p *= 1 - rate * decay
    p -= rate / correction_1 * m / (tl.sqrt(v / correction_2) + EPSILON)
    tl.store(parameter + place, p, mask=inside)
    tl.store(mean + place, m, mask=inside)
    tl.store(square + place, v, mask=inside)


_UPDATE = TritonKernel(adamw)

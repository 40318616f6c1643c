"""Attention with dropout on a CPU, with masks that are cheap to draw and work that fits the cache.

PyTorch draws one number per attention probability, on one thread, and goes through the whole score matrix for every
operation. Here four probabilities share one 64-bit number, and each block of rows is finished before the next.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 2**16


def draw_kept(shape: tuple[int, ...] | torch.Size, probability: float) -> tuple[Tensor, float]:
    """A boolean mask of what dropout keeps, and the factor for what is kept.

    Drops with the multiple of 2^-16 nearest to `probability`. The factor is the exact inverse of what is kept, so the
    expected value is exact.
    """
    threshold = min(max(round(probability * LEVELS), 1), LEVELS - 1)
    count = math.prod(shape)
    random_words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    lanes = random_words.view(torch.int16)[:count].view(shape)
    return lanes >= threshold - LEVELS // 2, LEVELS / (LEVELS - threshold)  # int16 starts at -2^15


def attend_with_dropout(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, probability: float) -> Tensor:
    """softmax(q kᵀ/√d + bias), dropped out, times v; [batch, heads, rows, size], a bias for all heads."""
    kept, keep_scale = draw_kept((*query.shape[:3], key.shape[2]), probability)
    return _DroppedAttention.apply(query, key, value, bias.expand(len(query), -1, -1, -1), kept, keep_scale)


def dropout_weights(weights: Tensor, probability: float) -> Tensor:
    """`F.dropout` of probabilities that are wanted for themselves."""
    if weights.device.type != "cpu" or probability == 0:
        return F.dropout(weights, probability)
    kept, keep_scale = draw_kept(weights.shape, probability)
    return torch.where(kept, weights * keep_scale, 0.0)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type to compute probabilities in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


class _DroppedAttention(torch.autograd.Function):
    """One example (or block of rows) after the other; backward computes the probabilities again."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, kept: Tensor, keep_scale: float
    ) -> Tensor:
        output = torch.empty_like(query)
        for index in range(len(query)):
            weights = _probabilities(query[index], key[index], bias[index]).mul_(kept[index]).mul_(keep_scale)
            torch.matmul(weights.to(value.dtype), value[index], out=output[index])
        ctx.save_for_backward(query, key, value, bias, kept)
        ctx.keep_scale = keep_scale
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, kept = ctx.saved_tensors
        scale = 1 / math.sqrt(query.shape[-1])
        dq, dk, dv = (torch.empty_like(rows) for rows in (query, key, value))
        for index in range(len(query)):
            weights = _probabilities(query[index], key[index], bias[index])
            dropped = (weights * kept[index]).mul_(ctx.keep_scale).to(value.dtype)
            torch.matmul(dropped.transpose(-1, -2), gradient[index], out=dv[index])
            dp = (gradient[index] @ value[index].transpose(-1, -2)).to(weights.dtype)
            dp.mul_(kept[index]).mul_(ctx.keep_scale)
            # Softmax: dS = P (dP - Σ P dP)
            product = dp.mul_(weights)
            ds = product.sub_(weights.mul_(product.sum(dim=-1, keepdim=True))).to(query.dtype)
            torch.matmul(ds, key[index], out=dq[index]).mul_(scale)
            torch.matmul(ds.transpose(-1, -2), query[index], out=dk[index]).mul_(scale)
        return dq, dk, dv, None, None, None


def _probabilities(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    scores = (query @ key.transpose(-1, -2)).to(wide(query.dtype))
    return scores.mul_(1 / math.sqrt(query.shape[-1])).add_(bias).softmax(dim=-1)

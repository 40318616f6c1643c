"""Dropout with masks that are computed from random seeds and not stored; backward computes the same ones."""

from __future__ import annotations

import itertools

import torch
import triton
import triton.language as tl  # noqa: F401 (Triton's interpreter looks for it wherever a kernel is written)
from torch import Tensor

LEVELS = 2**32


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

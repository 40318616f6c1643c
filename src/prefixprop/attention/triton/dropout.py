"""Dropout whose mask is computed, not stored: backward, with other tiles, finds the same one."""

from __future__ import annotations

import itertools

import torch
import triton
import triton.language as tl  # noqa: F401 (Triton's interpreter looks for it wherever a kernel is written)
from torch import Tensor

LEVELS = 2**32


def draw_dropout_seeds(counts: tuple[int, ...], like: Tensor, dropout: float) -> list[Tensor]:
    """Random 32-bit words for so many rows or columns each, from PyTorch's generator; `like` where none is needed."""
    if not dropout:
        return [like] * len(counts)  # kernels want an address, though they will not look there
    # One draw for all, each beginning at 16 bytes, which kernels are compiled for.
    ends = list(itertools.accumulate(-(-count // 4) * 4 for count in counts))
    seeds = torch.randint(-LEVELS // 2, LEVELS // 2, (ends[-1],), dtype=torch.int32, device=like.device)
    return [seeds[start : start + count] for start, count in zip([0, *ends], counts, strict=False)]


def levels(probability: float) -> tuple[int, float]:
    """The least number that is kept, among all of 32 bits, and what the kept grow by."""
    dropped = min(round(probability * LEVELS), LEVELS - 1)
    return dropped - LEVELS // 2, LEVELS / (LEVELS - dropped)


@triton.jit
def is_kept(row_seeds, column_seeds, keep_threshold):
    """Whether each pair of a row and a column is kept.

    A number of the generator for every probability would cost more than the attention itself. The two words are
    random already; the multiplication breaks the dependence that is left between the corners of a rectangle.
    """
    return (row_seeds ^ column_seeds) * -1640531535 >= keep_threshold  # 2³² / golden ratio, made odd

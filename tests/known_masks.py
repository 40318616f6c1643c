"""Masks of the Triton kernels' dropout, from the words that they are computed of."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from prefixprop.attention.triton.tiles import levels


def mask_of(seeds: Sequence[Tensor], piece: int, width: int, dropout: float) -> Tensor:
    """What rows are multiplied by, where each of several pieces has columns of its own."""
    keep_threshold, keep_scale = levels(dropout)
    columns = seeds[1][piece * width : (piece + 1) * width]
    return ((seeds[0][:, None] ^ columns[None, :]) * -1640531535 >= keep_threshold).float() * keep_scale


class Masked(nn.Module):
    """Stands for a dropout whose mask is known."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.mask.view_as(rows)

"""Masks of the Triton kernels' dropout, from the words that they are computed of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor, nn

from prefixprop.attention.triton.shared import levels


def recorded_seeds(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> list[list[Tensor]]:
    """The words that these modules draw from now on."""
    drawn: list[list[Tensor]] = []
    for module in modules:
        draw = module.draw_dropout_seeds
        monkeypatch.setattr(
            module, "draw_dropout_seeds", lambda *given, draw=draw: drawn.append(draw(*given)) or drawn[-1]
        )
    return drawn


def is_kept(rows: Tensor, columns: Tensor, dropout: float) -> Tensor:
    """What is multiplied by, from the words of rows and of columns: 0, or what makes up for it."""
    keep_threshold, keep_scale = levels(dropout)
    return ((rows ^ columns) * -1640531535 >= keep_threshold).float() * keep_scale


def mask_of(seeds: Sequence[Tensor], piece: int, width: int, dropout: float) -> Tensor:
    """What rows are multiplied by, where each of several pieces has columns of its own."""
    return is_kept(seeds[0][:, None], seeds[1][None, piece * width : (piece + 1) * width], dropout)


class Masked(nn.Module):
    """Stands for a dropout whose mask is known."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.mask.view_as(rows)

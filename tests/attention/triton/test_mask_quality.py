"""The mask that dropout computes from one word for each row and each column is as good as independent draws."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
import triton
import triton.language as tl

from prefixprop.attention.triton.shared import draw_dropout_seeds, is_kept, levels

SIDE = 256


@triton.jit
def write_mask(row_seeds, column_seeds, mask, keep_threshold, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    kept = is_kept(tl.load(row_seeds + place)[:, None], tl.load(column_seeds + place)[None, :], keep_threshold)
    tl.store(mask + place[:, None] * BLOCK + place[None, :], kept.to(tl.float32))


def draw_mask(probability: float) -> Tensor:
    """[rows, columns]: 1 where something is kept."""
    mask = torch.empty(SIDE, SIDE)
    seeds = torch.randint(-(2**31), 2**31, (2, SIDE), dtype=torch.int32)
    write_mask[(1,)](*seeds, mask, levels(probability)[0], BLOCK=SIDE)
    return mask


def test_words_of_several_things_from_one_draw() -> None:
    like = torch.empty(1)
    seeds = draw_dropout_seeds((5, 3, 8), like, 0.5)
    assert [len(drawn) for drawn in seeds] == [5, 3, 8]
    assert all(drawn.data_ptr() % 16 == seeds[0].data_ptr() % 16 for drawn in seeds)
    assert len(torch.cat(seeds).unique()) == 16
    assert all(drawn is like for drawn in draw_dropout_seeds((5, 3), like, 0.0))


probabilities = pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])


@probabilities
def test_share_of_dropped(probability: float) -> None:
    masks = torch.stack([draw_mask(probability) for _ in range(4)])
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert abs(float((1 - masks).mean()) - probability) < 5 * math.sqrt(
        probability * (1 - probability) / masks.numel()
    )
    assert levels(probability)[1] == pytest.approx(1 / (1 - probability), rel=1e-6)


@probabilities
def test_rows_columns_and_corners_of_rectangles_are_independent(probability: float) -> None:
    mask = (draw_mask(probability) - (1 - probability)) / math.sqrt(probability * (1 - probability))
    # By chance alone, the correlation of two rows (or columns) has a deviation of 1/√SIDE.
    for matrix in (mask, mask.t()):
        products = (matrix @ matrix.t() / SIDE).fill_diagonal_(0.0)
        assert abs(float(products.sum())) / (SIDE * (SIDE - 1)) < 5 / SIDE
        # Its mean square is 1/SIDE; whatever else corners i, l × j, k have in common adds to that.
        excess = float(products.square().sum()) / (SIDE * (SIDE - 1)) - 1 / SIDE
        assert abs(excess) < 0.02

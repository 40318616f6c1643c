"""Attention to the prefix rows outside the softmax (Eq. 3), against plain PyTorch with the same dropout mask."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from prefixprop.attention.gpu import prefix_part
from prefixprop.attention.gpu.dropout import draw_words, levels
from prefixprop.attention.gpu.launch import Shape, Words
from prefixprop.attention.gpu.pattern import DevicePattern
from prefixprop.attention.pattern import AttentionPattern

HEADS, SIZE, BATCH, LENGTH, WEIGHT = 2, 8, 2, 37, 0.7
WIDTH = HEADS * SIZE


def mask_of(words: Words, outside: int, dropout: float) -> Tensor:
    """What the probability of each row and prefix row is multiplied by."""
    if not dropout:
        return torch.ones(BATCH, HEADS, LENGTH, outside)
    least, growth = levels(dropout)
    row = words.rows.view(BATCH, HEADS, LENGTH, 1)
    column = words.columns.view(BATCH, 1, 1, LENGTH)[..., :outside]
    return ((row ^ column) * -1640531535 >= least).float() * growth


def expected(rows: Tensor, near: Tensor, far: Tensor, pattern: AttentionPattern, mask: Tensor) -> Tensor:
    query, key, value = near.view(BATCH, LENGTH, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    far_key, far_value = far.view(BATCH, LENGTH, 2, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    outside = pattern.rows_outside_softmax

    def attended(key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key[:, :, :outside].transpose(-1, -2) / math.sqrt(SIZE)
        return (scores.softmax(dim=-1) * mask) @ value[:, :, :outside]

    is_global, is_masked = pattern.is_global[:, None, :, None], pattern.is_masked[:, None, :, None]
    part = torch.where(is_global, attended(far_key, far_value), attended(key, value)).masked_fill(is_masked, 0.0)
    return rows + WEIGHT * part.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("outside", "dropout"), [(3, 0.0), (3, 0.4), (19, 0.4)])
def test_rows_and_gradients(outside: int, dropout: float) -> None:
    torch.manual_seed(1)
    attention_mask = torch.zeros(BATCH, LENGTH)
    attention_mask[:, :outside] = 10000.0  # the prefix is global
    attention_mask[0, outside] = attention_mask[1, outside + 5] = 10000.0
    attention_mask[1, 30:] = -10000.0
    pattern = AttentionPattern.from_mask(attention_mask, outside)
    on_device = DevicePattern.of(pattern, 0, HEADS)
    shape = Shape(HEADS, SIZE, 4, 0, outside, dropout)
    words = Words(*draw_words((BATCH * HEADS * LENGTH, BATCH * LENGTH), on_device.arrivals, dropout))
    near = torch.randn(BATCH * LENGTH, 3 * WIDTH, requires_grad=True)
    far = torch.randn(BATCH * LENGTH, 2 * WIDTH, requires_grad=True)
    rows, gradient = torch.randn(2, BATCH, LENGTH, WIDTH)
    gradient[1, 30:] = 0.0

    output = expected(rows, near, far, pattern, mask_of(words, outside, dropout))
    output.backward(gradient)
    with torch.no_grad():
        summed = prefix_part.add_part(rows, near, far, on_device, words, shape, WEIGHT)
    torch.testing.assert_close(summed, output.detach(), atol=1e-5, rtol=1e-5)

    already = [torch.randn_like(near), torch.randn_like(far), torch.randn_like(rows)]
    for_near, for_far, for_query = (tensor.clone() for tensor in already)
    prefix_part.add_gradients(
        gradient, near.detach(), far.detach(), on_device, words, shape, WEIGHT, (for_near, for_far, for_query)
    )
    assert near.grad is not None and far.grad is not None
    is_global = pattern.is_global.flatten()[:, None]
    by_near = for_near - already[0]
    by_query = (for_query - already[2]).flatten(0, 1)
    torch.testing.assert_close(by_near[:, WIDTH:], near.grad[:, WIDTH:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        torch.where(is_global, by_query, by_near[:, :WIDTH]), near.grad[:, :WIDTH], atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(for_far - already[1], far.grad, atol=1e-5, rtol=1e-4)
    assert by_query[~is_global[:, 0]].abs().max() == 0

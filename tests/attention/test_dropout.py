"""Cheap masks: their distribution, their seed, and the gradients of the attention that uses them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from prefixprop.attention.dropout import attend_with_dropout, draw_kept


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_share_of_dropped(probability: float) -> None:
    count = 400_000
    kept, keep_scale = draw_kept((count,), probability)
    dropped = 1 - kept.float().mean().item()
    assert abs(dropped - probability) < 5 * math.sqrt(probability * (1 - probability) / count) + 2**-16
    assert keep_scale == pytest.approx(1 / (1 - probability), rel=2e-4)


def test_places_are_independent() -> None:
    """No lane of the 64-bit words, and no pair of neighbours, is favoured."""
    kept = draw_kept((100_000, 8), 0.3)[0].float()
    assert (kept.mean(dim=0) - 0.7).abs().max() < 0.01
    correlation = torch.corrcoef(kept.t()) - torch.eye(8)
    assert correlation.abs().max() < 0.015


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_same_mask_forward_and_backward(dtype: torch.dtype) -> None:
    """Against plain autograd on the same mask; a mask redrawn in backward would give other gradients."""
    query, key, value = (torch.randn(3, 2, rows, 8, dtype=dtype, requires_grad=True) for rows in (5, 9, 9))
    bias = torch.zeros(3, 1, 5, 9, dtype=dtype)
    bias[1, :, :, 4:] = torch.finfo(dtype).min
    direction = torch.randn(3, 2, 5, 8, dtype=dtype)
    torch.manual_seed(2)
    output = attend_with_dropout(query, key, value, bias, 0.3)
    found = torch.autograd.grad((output * direction).sum(), (query, key, value))

    torch.manual_seed(2)
    kept, keep_scale = draw_kept((3, 2, 5, 9), 0.3)
    scores = query.double() @ key.double().transpose(-1, -2) / math.sqrt(8) + bias.double()
    expected = (F.softmax(scores, dim=-1) * kept * keep_scale) @ value.double()
    gradients = torch.autograd.grad((expected * direction.double()).sum(), (query, key, value))
    tolerance = {torch.bfloat16: 5e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)
    for mine, other in zip(found, gradients, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), other.double(), atol=tolerance, rtol=tolerance)

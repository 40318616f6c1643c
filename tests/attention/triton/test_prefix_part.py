"""Attention to the prefix rows outside the softmax (Eq. 3), against plain PyTorch with the same dropout mask."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart
from prefixprop.attention.triton import prefix_part
from prefixprop.attention.triton.launch_attention import (
    AttentionGradients,
    AttentionInputs,
    DevicePattern,
    DropoutSeeds,
    Shape,
)
from prefixprop.attention.triton.tiles import draw_dropout_seeds, levels
from prefixprop.kernels import Exponential, Kernel, Linear, Polynomial, RadialBasis

HEADS, SIZE, BATCH, LENGTH = 2, 8, 2, 37
WIDTH = HEADS * SIZE


def mask_of(seeds: DropoutSeeds, outside: int, dropout: float) -> Tensor:
    """What the probability of each row and prefix row is multiplied by."""
    if not dropout:
        return torch.ones(BATCH, HEADS, LENGTH, outside)
    keep_threshold, keep_scale = levels(dropout)
    row = seeds.rows.view(BATCH, HEADS, LENGTH, 1)
    column = seeds.columns.view(BATCH, 1, 1, LENGTH)[..., :outside]
    return ((row ^ column) * -1640531535 >= keep_threshold).float() * keep_scale


def alpha_of(part: FusedPart, query: Tensor) -> Tensor | float:
    if part.trained is None:
        return part.alpha
    if part.trained.dim() == 1:
        return part.trained[:, None, None]
    return part.alpha * 2 * torch.sigmoid(query @ part.trained[:, :, None] / math.sqrt(SIZE))


def expected(
    rows: Tensor,
    qkv: Tensor,
    kv_global: Tensor,
    pattern: AttentionPattern,
    mask: Tensor,
    kernel: Kernel,
    part: FusedPart,
) -> Tensor:
    query, key, value = qkv.view(BATCH, LENGTH, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    k_global, v_global = kv_global.view(BATCH, LENGTH, 2, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    outside = pattern.rows_outside_softmax

    def attended(key: Tensor, value: Tensor) -> Tensor:
        weights = kernel.weights(query, key[:, :, :outside]) * mask
        return alpha_of(part, query) * (weights @ value[:, :, :outside])

    is_global, is_masked = pattern.is_global[:, None, :, None], pattern.is_masked[:, None, :, None]
    attention = torch.where(is_global, attended(k_global, v_global), attended(key, value)).masked_fill(is_masked, 0.0)
    return rows + attention.transpose(1, 2).flatten(2)


EXP, POLY = (1 / math.sqrt(SIZE), 0.0, 1), (1 / math.sqrt(SIZE), 0.5, 4)
KERNELS: dict[str, tuple[Kernel, tuple[float, float, int]]] = {
    "exp": (Exponential(), EXP),
    "rbf": (RadialBasis(length_scale=1.5), (1 / 1.5**2, 0.0, 1)),
    "poly": (Polynomial(degree=4, offset=0.5), POLY),
    "linear": (Linear(), (SIZE**-0.25, 0.0, 1)),
}


@pytest.mark.parametrize(
    ("name", "mode", "outside", "dropout"),
    [
        ("exp", "fixed", 3, 0.0),
        ("exp", "fixed", 19, 0.4),
        ("exp", "query", 3, 0.4),
        ("rbf", "head", 3, 0.4),
        ("poly", "query", 3, 0.4),
        ("linear", "head", 19, 0.4),
    ],
)
def test_rows_and_gradients(name: str, mode: str, outside: int, dropout: float) -> None:
    torch.manual_seed(1)
    attention_mask = torch.zeros(BATCH, LENGTH)
    attention_mask[:, :outside] = 10000.0  # the prefix is global
    attention_mask[0, outside] = attention_mask[1, outside + 5] = 10000.0
    attention_mask[1, 30:] = -10000.0
    pattern = AttentionPattern(attention_mask < 0, attention_mask > 0, outside)
    on_device = DevicePattern.of(pattern, 0, HEADS)
    shape = Shape(HEADS, SIZE, 4, 0, outside, dropout)
    seeds = DropoutSeeds(*draw_dropout_seeds((BATCH * HEADS * LENGTH, BATCH * LENGTH), on_device.arrivals, dropout))
    qkv = torch.randn(BATCH * LENGTH, 3 * WIDTH, requires_grad=True)
    kv_global = torch.randn(BATCH * LENGTH, 2 * WIDTH, requires_grad=True)
    rows, gradient = torch.randn(2, BATCH, LENGTH, WIDTH)
    gradient[1, 30:] = 0.0
    trained = {"fixed": None, "head": torch.randn(HEADS), "query": torch.randn(HEADS, SIZE)}[mode]
    trained = None if trained is None else trained.requires_grad_()
    kernel, numbers = KERNELS[name]
    part = FusedPart(name, *numbers, 0.7, trained)

    output = expected(rows, qkv, kv_global, pattern, mask_of(seeds, outside, dropout), kernel, part)
    output.backward(gradient)
    given = AttentionInputs(qkv.detach(), kv_global.detach(), on_device, seeds, shape)
    part = part._replace(trained=None if trained is None else trained.detach())
    summed = prefix_part.add_part(rows, given, part)
    torch.testing.assert_close(summed, output.detach(), atol=1e-5, rtol=1e-5)

    already = [torch.randn_like(qkv), torch.randn_like(kv_global), torch.randn_like(rows)]
    dqkv, dkv_global, dq_global = (tensor.clone() for tensor in already)
    d_alpha = prefix_part.add_gradients(gradient, given, part, AttentionGradients(dqkv, dkv_global, dq_global))
    assert qkv.grad is not None and kv_global.grad is not None
    if trained is None:
        assert d_alpha is None
    else:
        torch.testing.assert_close(d_alpha, trained.grad, atol=1e-5, rtol=1e-4)
    is_global = pattern.is_global.flatten()[:, None]
    by_near = dqkv - already[0]
    by_query = (dq_global - already[2]).flatten(0, 1)
    torch.testing.assert_close(by_near[:, WIDTH:], qkv.grad[:, WIDTH:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        torch.where(is_global, by_query, by_near[:, :WIDTH]), qkv.grad[:, :WIDTH], atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(dkv_global - already[1], kv_global.grad, atol=1e-5, rtol=1e-4)
    assert by_query[~is_global[:, 0]].abs().max() == 0


def test_prefixes_that_a_program_cannot_hold() -> None:
    half, single = torch.empty(0, dtype=torch.bfloat16), torch.empty(0)
    assert prefix_part.fits(8, 64, half) and prefix_part.fits(128, 64, half) and prefix_part.fits(64, 64, single)
    assert not prefix_part.fits(129, 64, half) and not prefix_part.fits(128, 64, single)
    assert not prefix_part.fits(0, 64, half)

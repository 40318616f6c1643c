"""Dropout, residual and LayerNorm in one pass equal PyTorch's three, forward and backward."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("triton")
from prefixprop.attention.triton.residual_norm import residual_norm, sum_and_norm


def a_norm(width: int, trained: bool = False) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, eps=1e-5).requires_grad_(trained)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def inputs(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    update, residual, direction = torch.randn(3, *shape)
    return update.requires_grad_(), (3 + 2 * residual).requires_grad_(), direction


@settings(max_examples=15)
@given(
    batch=st.integers(1, 3), rows=st.integers(1, 9), width=st.sampled_from([1, 7, 32, 48, 129]), trained=st.booleans()
)
def test_equals_layer_norm_of_the_sum(batch: int, rows: int, width: int, trained: bool) -> None:
    norm = a_norm(width, trained)
    update, residual, direction = inputs(batch, rows, width)
    wanted = (update, residual, *(norm.parameters() if trained else ()))
    output = residual_norm(update, residual, norm, 0.0)
    expected = nn.functional.layer_norm(
        update.double() + residual.double(), (width,), norm.weight.double(), norm.bias.double(), norm.eps
    )
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad((output * direction).sum(), wanted)
    exact = torch.autograd.grad((expected * direction).sum(), wanted)
    # A single number's variance is zero, and 1/σ is large.
    torch.testing.assert_close(found, exact, atol=1e-5 if width > 1 else 1e-3, rtol=1e-4)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_sum_beside_its_norm(bias: bool, trained: bool) -> None:
    norm = nn.LayerNorm(48, bias=bias).requires_grad_(trained)
    nn.init.normal_(norm.weight)
    update, residual, direction = inputs(2, 9, 48)
    wanted = (update, residual, *(norm.parameters() if trained else ()))
    total, normed = sum_and_norm(update, residual, norm)
    found = torch.autograd.grad((normed * direction + total.square()).sum(), wanted)
    exact = update + residual
    torch.testing.assert_close((total, normed), (exact, norm(exact)), atol=1e-5, rtol=1e-5)
    expected = torch.autograd.grad((norm(exact) * direction + exact.square()).sum(), wanted)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_dropout_acts_on_the_update_alone_and_backward_has_its_mask() -> None:
    probability, norm = 0.3, a_norm(64)
    update, residual, direction = inputs(2, 40, 64)
    torch.manual_seed(1)
    output = residual_norm(update, residual, norm, probability)
    found = torch.autograd.grad((output * direction).sum(), (update, residual))
    kept = found[0] != 0
    deviation = math.sqrt(probability * (1 - probability) / kept.numel())
    assert abs(float((~kept).float().mean()) - probability) < 5 * deviation
    expected = norm(update * kept / (1 - probability) + residual)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    exact = torch.autograd.grad((expected * direction).sum(), (update, residual))
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-4)
    torch.manual_seed(1)
    assert torch.equal(residual_norm(update, residual, norm, probability), output)
    assert not torch.equal(residual_norm(update, residual, norm, probability), output)


def test_types_that_differ_as_under_autocast() -> None:
    norm = a_norm(32)
    update, residual, direction = inputs(2, 5, 32)
    half = update.detach().bfloat16().requires_grad_()
    output = residual_norm(half, residual, norm, 0.0)
    expected = norm(half.float() + residual)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad((output * direction).sum(), (half, residual))
    exact = torch.autograd.grad((expected * direction).sum(), (half, residual))
    assert found[0].dtype == torch.bfloat16 and found[1].dtype == torch.float32
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-2)

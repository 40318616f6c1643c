"""The kernel part of Eq. 3: its α, and its memory. What it computes is in `test_equations`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from prefixprop import PrefixPropagationConfig, count_parameters
from prefixprop.tuners import kernel as kernel_module
from prefixprop.tuners.kernel import PrefixAttention

from tiny import adapt, both_methods, tiny_model, trained_head


@pytest.mark.parametrize(
    ("family", "mode", "shape"),
    [
        ("bert", "fixed", ()),
        ("longformer", "layer", (3,)),
        ("modernbert", "head", (3, 4)),
        ("roberta", "query", (3, 4, 8)),
    ],
)
@both_methods
def test_alpha_starts_as_asked_and_is_counted(family: str, method: str, mode: str, shape: tuple[int, ...]) -> None:
    model = adapt(tiny_model(family), method, kernel="rbf", alpha=0.25, alpha_mode=mode)
    alpha, count, is_trained = model.get_alpha(), count_parameters(model), mode != "fixed"
    assert count.alpha == math.prod(shape) * is_trained
    assert count.trainable == count.prefix + count.alpha + trained_head(model)
    if is_trained:
        assert alpha.requires_grad and torch.equal(alpha, torch.full(shape, 0.0 if mode == "query" else 0.25))
    else:
        assert alpha == 0.25


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_rows_in_blocks_are_computed_again_in_backward(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers, and nothing of rows × j waits for backward."""
    monkeypatch.setattr(kernel_module, "BLOCK_ROWS", 16)
    config = PrefixPropagationConfig(kernel="poly", alpha=0.5, alpha_mode="query")
    part = PrefixAttention.new(config, layers=1, heads=2, size=8)
    torch.nn.init.normal_(part.weight)
    rows, length = 37, 5
    leaves = [torch.randn(2, 2, count, 8, requires_grad=True) for count in (rows, length, length)]
    kept: list[int] = []

    def in_blocks(query: Tensor, *prefix: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            return part(0, query, *prefix, dropout)

    def plain(query: Tensor, *prefix: Tensor) -> Tensor:  # the same masks, drawn block by block
        return torch.cat([part._attend(0, block, *prefix, dropout) for block in query.split(16, dim=2)], dim=2)

    results = []
    for attend in (in_blocks, plain):
        torch.manual_seed(3)
        output = attend(*leaves)
        results.append([output, *torch.autograd.grad(output.square().sum(), [*leaves, part.weight])])
    torch.testing.assert_close(*results)
    assert not any(count % (2 * 2 * length) == 0 and count > 2 * 2 * length * 8 for count in kept)


@pytest.mark.parametrize("kernel", ["exp", "rbf", "poly", "linear"])
def test_float64_is_kept(kernel: str) -> None:
    """The exact gradient is that of differences, which float32 would round away."""
    config = PrefixPropagationConfig(kernel=kernel, alpha=0.5, alpha_mode="query")
    part = PrefixAttention.new(config, layers=1, heads=2, size=4).double()
    torch.nn.init.normal_(part.weight)
    leaves = [torch.randn(1, 2, count, 4, dtype=torch.float64, requires_grad=True) for count in (3, 2, 2)]
    assert torch.autograd.gradcheck(lambda *given: part(0, *given, 0.0), leaves)

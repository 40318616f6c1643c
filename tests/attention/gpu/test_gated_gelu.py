"""ModernBERT's feed-forward on Triton, in its interpreter, against Hugging Face's in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import ModernBertConfig
from transformers.models.modernbert.modeling_modernbert import ModernBertMLP

from prefixprop import attention

from one_layer import assert_close
from tiny import batch, tiny_model

pytest.importorskip("triton")
from prefixprop.attention.gpu.gated_gelu import gated_feed_forward


def feed_forward(inner: int, activation: str = "gelu") -> Any:
    torch.manual_seed(inner)
    return ModernBertMLP(ModernBertConfig(hidden_size=8, intermediate_size=inner, hidden_activation=activation))


def results(module: Any, run: Any, states: Tensor) -> dict[str, Tensor]:
    states = states.clone().requires_grad_()
    leaves = {"states": states} | dict(module.named_parameters())
    output = run(states)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    found = torch.autograd.grad((output * direction).sum(), list(leaves.values()))
    return {"output": output.detach()} | dict(zip(leaves, found, strict=True))


def assert_same_numbers(module: Any, states: Tensor) -> None:
    exact = copy.deepcopy(module).double()
    expected = results(exact, exact, states.double())
    found = results(module, lambda rows: gated_feed_forward(module.forward, module, rows), states)
    assert_close(found, expected)
    with torch.no_grad():
        assert torch.equal(gated_feed_forward(module.forward, module, states), found["output"])


@settings(max_examples=10)
@given(rows=st.integers(1, 40), inner=st.integers(1, 40), scale=st.sampled_from([0.1, 1.0, 20.0]))
def test_output_and_gradients(rows: int, inner: int, scale: float) -> None:
    assert_same_numbers(feed_forward(inner), scale * torch.randn(1, rows, 8))


def test_another_activation_stays() -> None:
    assert_same_numbers(feed_forward(12, "silu"), torch.randn(2, 5, 8))


def test_it_serves_while_installed_and_hooks_see_the_activation() -> None:
    model = tiny_model("modernbert")
    inputs = batch(model, [9, 5])
    calls: list[nn.Module] = []

    def called() -> int:
        calls.clear()
        model(**inputs)
        return len(calls)

    plain = [layer.mlp.act.forward for layer in model.model.layers]
    attention.install(model, backend="triton")
    for layer, forward in zip(model.model.layers, plain, strict=True):
        layer.mlp.act.forward = lambda *args, forward=forward: (calls.append(1), forward(*args))[1]
    assert called() == 0
    hook = model.model.layers[0].mlp.act.register_forward_hook(lambda *_: None)
    assert called() == 1
    hook.remove()
    attention.uninstall(model)
    assert called() == 3

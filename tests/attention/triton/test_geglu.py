"""The second half of a ModernBERT layer on Triton, in its interpreter, against Hugging Face's in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import ModernBertConfig
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer

from one_layer import assert_close

pytest.importorskip("triton")
from prefixprop.attention.triton import geglu as triton_backend


def layer_of(inner: int, **options: Any) -> Any:
    torch.manual_seed(inner)
    config = ModernBertConfig(hidden_size=8, num_attention_heads=1, intermediate_size=inner, **options)
    layer = ModernBertEncoderLayer(config, layer_idx=1)
    nn.init.normal_(layer.mlp_norm.weight)
    return layer


def results(layer: Any, run: Any, states: Tensor, attended: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of states, of what attention gave, and of what is trained."""
    states, attended = (rows.clone().requires_grad_() for rows in (states, attended))
    trained = {name: p for name, p in layer.named_parameters() if p.requires_grad and name.startswith("mlp")}
    leaves = {"states": states, "attended": attended} | trained
    output = run(layer, states, attended)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    (output * direction).sum().backward()
    return {"output": output.detach()} | {name: leaf.grad for name, leaf in leaves.items()}


def half(layer: Any, states: Tensor, attended: Tensor) -> Tensor:
    """As Hugging Face computes it."""
    states = states + attended
    return states + layer.mlp(layer.mlp_norm(states))


def assert_same_numbers(layer: Any, states: Tensor) -> None:
    attended = torch.randn_like(states)
    expected = results(copy.deepcopy(layer).double(), half, states.double(), attended.double())
    found = results(layer, triton_backend.geglu, states, attended)
    assert_close(found, expected)
    given = states.clone()
    with torch.no_grad():
        assert torch.equal(triton_backend.geglu(layer, states, attended), found["output"])
    assert torch.equal(states, given)


@settings(max_examples=6)
@given(rows=st.integers(1, 20), inner=st.integers(1, 40), scale=st.sampled_from([0.1, 1.0, 20.0]))
def test_output_and_gradients(rows: int, inner: int, scale: float) -> None:
    assert_same_numbers(layer_of(inner), scale * torch.randn(2, rows, 8))


@pytest.mark.parametrize("options", [{"hidden_activation": "silu"}, {"mlp_bias": True}, {"norm_bias": True}])
def test_layers_of_another_make(options: dict[str, Any]) -> None:
    assert_same_numbers(layer_of(12, **options), torch.randn(2, 5, 8))


@pytest.mark.parametrize("part", ["mlp_norm", "mlp", "mlp.Wi", "mlp.act", "mlp.drop", "mlp.Wo"])
def test_hooks_on_any_part_fire(part: str) -> None:
    layer, states, calls = layer_of(12), torch.randn(2, 2, 5, 8), []
    expected = triton_backend.geglu(layer, *states)
    layer.get_submodule(part).register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(triton_backend.geglu(layer, *states), expected, atol=1e-5, rtol=1e-5)
    assert calls == [1]


def test_dropout_is_not_left_out() -> None:
    layer = layer_of(12, mlp_dropout=0.5).train()
    states = torch.randn(2, 2, 5, 8)
    dropped = triton_backend.geglu(layer, *states)
    assert not torch.allclose(dropped, triton_backend.geglu(layer.eval(), *states))

"""The two ends of a ModernBERT layer in Triton's interpreter, against Hugging Face's parts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers import ModernBertConfig
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer

from one_layer import assert_close

pytest.importorskip("triton")
from prefixprop.attention.triton import block, lora, modernbert
from prefixprop.attention.triton.block import BlockPlan, compute_type, plan_for
from prefixprop.attention.triton.geglu import geglu

from known_masks import Masked, mask_of, recorded_seeds

WIDTH = 8
SECOND_HALF = ["mlp_norm", "mlp", "mlp.Wi", "mlp.act", "mlp.drop", "mlp.Wo"]
LINEARS = ["attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo"]


def layer_of(
    index: int = 1, targets: list[str] | None = None, lora_dropout: float = 0.0, inner: int = 20, **options: Any
) -> Any:
    """The first layer, or another, frozen but for LoRA around `targets`."""
    torch.manual_seed(3)
    config = ModernBertConfig(hidden_size=WIDTH, num_attention_heads=1, intermediate_size=inner, **options)
    layer = ModernBertEncoderLayer(config, layer_idx=index).requires_grad_(False)
    for name, parameter in layer.named_parameters():
        nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    if targets:
        config = {"r": 3, "lora_alpha": 2, "init_lora_weights": False, "target_modules": targets}
        layer = inject_adapter_in_model(LoraConfig(**config, lora_dropout=lora_dropout), layer)
    return layer


def attend(projected: Tensor) -> Tensor:
    """Stands for attention."""
    query, key, value = projected.chunk(3, dim=-1)
    return query * key + value


def in_parts(layer: Any, states: Tensor) -> Tensor:
    """As Hugging Face computes it."""
    states = states + layer.attn.out_drop(layer.attn.Wo(attend(layer.attn.Wqkv(layer.attn_norm(states)))))
    return states + layer.mlp(layer.mlp_norm(states))


def plan_of(layer: Any, dtype: torch.dtype = torch.float32) -> BlockPlan:
    return plan_for({}, layer, dtype, modernbert.plan_of)


def in_one_piece(layer: Any, states: Tensor, attend: Any = attend) -> Tensor:
    dtype = compute_type(states)
    plan = plan_of(layer, dtype)
    assert plan.leave is not None
    return modernbert.in_parts(layer, plan, states.to(dtype), attend)


def results(layer: Any, run: Any, *given: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of what is given (the states, for one) and of all that learns."""
    given = tuple(rows.clone().requires_grad_() for rows in given)
    leaves = dict(zip(("states", "attended"), given, strict=False))
    leaves |= {name: p for name, p in layer.named_parameters() if p.requires_grad}
    output = run(layer, *given)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    found = torch.autograd.grad((output * direction).sum(), list(leaves.values()))
    return {"output": output.detach()} | dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("targets", [[], LINEARS[:1], LINEARS])
@pytest.mark.parametrize("index", [0, 1])
def test_output_and_gradients(index: int, targets: list[str]) -> None:
    layer, states = layer_of(index, targets), torch.randn(2, 5, WIDTH)
    found = results(layer, in_one_piece, states)
    assert len(found) == 2 + 2 * len(targets)
    assert_close(found, results(copy.deepcopy(layer).double(), in_parts, states.double()))
    given = states.clone()
    with torch.no_grad():
        assert torch.equal(in_one_piece(layer, states), found["output"])
    assert torch.equal(states, given)


def test_under_autocast_with_weights_held_in_its_type() -> None:
    layer, states = layer_of(1, LINEARS), torch.randn(2, 5, WIDTH)
    held = copy.deepcopy(layer)
    for parameter in held.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.half()
    with torch.autocast("cpu", torch.float16):
        found = results(held, in_one_piece, states)
    assert found["output"].dtype == torch.float16
    for name, expected in results(layer, in_parts, states).items():
        error = (found[name].float() - expected).norm() / expected.norm()
        assert error < 1e-2, name


def test_lora_where_the_states_do_not_learn() -> None:
    layer, states = layer_of(0, LINEARS[:1]), torch.randn(2, 5, WIDTH)
    gradients = []
    for run in (in_one_piece, in_parts):
        run(layer, states).square().sum().backward()
        gradients.append([p.grad for p in layer.parameters() if p.requires_grad])
        layer.zero_grad()
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """LoRA's own, and that of attention's output; backward has the masks of forward."""
    layer, states = layer_of(1, LINEARS, 0.4, attention_dropout=0.3), torch.randn(2, 9, WIDTH)
    drawn = recorded_seeds(monkeypatch, lora, block)
    found = results(layer.train(), in_one_piece, states)
    *of_lora, of_output = drawn
    for name, seeds in zip(LINEARS, of_lora, strict=True):
        linear = layer.get_submodule(name)
        linear.lora_dropout["default"] = Masked(mask_of(seeds, 0, linear.in_features, 0.4))
    layer.attn.out_drop = Masked(mask_of(of_output, 0, WIDTH, 0.3))
    assert_close(found, results(layer, in_parts, states))


def test_nothing_is_kept_for_weights() -> None:
    layer, kept = layer_of(), dict[int, Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        states = torch.randn(2, 50, WIDTH, requires_grad=True)
        in_one_piece(layer, states, lambda projected: projected[..., :WIDTH])
    own = [tensor for tensor in kept.values() if all(tensor is not p for p in layer.parameters())]
    rows = sum(tensor.numel() for tensor in own) / 100
    assert rows == WIDTH + 2 + WIDTH + 2  # the states and the sum after attention, mean and deviation of each


@pytest.mark.parametrize("part", ["attn", "attn.Wo", "attn.out_drop", *SECOND_HALF])
def test_parts_that_somebody_watches_are_called(part: str) -> None:
    """In the second half by itself too."""
    layer, states, calls = layer_of(), torch.randn(2, 2, 5, WIDTH), []
    expected = geglu(layer, *states)
    layer.get_submodule(part).register_forward_hook(lambda *_: calls.append(1))
    assert plan_of(layer).leave is None
    torch.testing.assert_close(geglu(layer, *states), expected, atol=1e-5, rtol=1e-5)
    assert len(calls) == (part in SECOND_HALF)


@pytest.mark.parametrize("part", ["attn_norm", "attn.Wqkv"])
@pytest.mark.parametrize("why", ["trained", "watched"])
def test_the_way_in_may_learn_or_be_watched(part: str, why: str) -> None:
    layer, states, calls = layer_of(), torch.randn(2, 5, WIDTH), []
    module = layer.get_submodule(part).requires_grad_(why == "trained")
    if why == "watched":
        module.register_forward_hook(lambda *_: calls.append(1))
    found = results(layer, in_one_piece, states)
    assert len(calls) == (why == "watched") and len(found) == 2 + (why == "trained")
    assert_close(found, results(copy.deepcopy(layer).double(), in_parts, states.double()))


OTHERS: list[dict[str, Any]] = [{"hidden_activation": "silu"}, {"mlp_bias": True}, {"norm_bias": True}]


@pytest.mark.parametrize("options", [*OTHERS, {"mlp_dropout": 0.1}])
def test_layers_of_another_make_go_in_parts(options: dict[str, Any]) -> None:
    layer = layer_of(**options).train()
    assert plan_of(layer).leave is None
    trained = layer_of()
    trained.mlp.Wi.requires_grad_(True)
    assert plan_of(trained).leave is None


# --- the second half by itself, where its weights learn or it is of another make ------------------------------------


def half(layer: Any, states: Tensor, attended: Tensor) -> Tensor:
    """As Hugging Face computes it."""
    states = states + attended
    return states + layer.mlp(layer.mlp_norm(states))


def assert_same_half(layer: Any, states: Tensor) -> None:
    given = states, torch.randn_like(states)
    layer.mlp_norm.requires_grad_()
    layer.mlp.requires_grad_()
    found = results(layer, geglu, *given)
    assert_close(found, results(copy.deepcopy(layer).double(), half, *(rows.double() for rows in given)))
    before = states.clone()
    with torch.no_grad():
        assert torch.equal(geglu(layer, *given), found["output"])
    assert torch.equal(states, before)


@settings(max_examples=6)
@given(rows=st.integers(1, 20), inner=st.integers(1, 40), scale=st.sampled_from([0.1, 1.0, 20.0]))
def test_second_half(rows: int, inner: int, scale: float) -> None:
    assert_same_half(layer_of(inner=inner), scale * torch.randn(2, rows, WIDTH))


@pytest.mark.parametrize("options", OTHERS)
def test_second_half_of_another_make(options: dict[str, Any]) -> None:
    assert_same_half(layer_of(**options), torch.randn(2, 5, WIDTH))


def test_dropout_of_the_second_half_is_not_left_out() -> None:
    layer, states = layer_of(mlp_dropout=0.5).train(), torch.randn(2, 2, 5, WIDTH)
    dropped = geglu(layer, *states)
    assert not torch.allclose(dropped, geglu(layer.eval(), *states))

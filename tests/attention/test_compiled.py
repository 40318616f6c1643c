"""Plain PyTorch's attention under `torch.compile(fullgraph=True)`: the eager numbers, at any length, in one graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from prefixprop import attention
from prefixprop.attention import AttentionPattern, compiled, sliding_window
from prefixprop.attention.prefix import PrefixedKeys

from one_layer import Case, Layer, assert_close, layer_of, results
from one_layer import attention as self_attention
from tiny import adapt, batch, tiny_model

SMALL = {"num_hidden_layers": 1, "attention_window": [8], "num_attention_heads": 2, "hidden_size": 16}


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch.compiler.reset()


def compiled_backend() -> Any:
    """A backend for `results`: one compiled function, which must serve all lengths."""

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def attend(module: Any, states: Tensor, masked: Tensor, everywhere: Tensor, hidden: int, *rest: Any) -> Any:
        return compiled.longformer_self_attention(module, states, AttentionPattern(masked, everywhere, hidden), *rest)

    def longformer_self_attention(module: Any, states: Tensor, pattern: AttentionPattern, *rest: Any) -> Any:
        return attend(module, states, pattern.is_masked, pattern.is_global, pattern.rows_outside_softmax, *rest)

    return SimpleNamespace(longformer_self_attention=longformer_self_attention)


def case(length: int, kept: list[int], kinds: list[str], prefix: int = 0, left: bool = False) -> Case:
    return Case(length, 16, 2, 8, kept, left, kinds, prefix, 0, seed=length)


@pytest.mark.parametrize("prefix", [0, 3])
def test_numbers_and_gradients_of_every_pattern_from_one_graph(prefix: int) -> None:
    backend = compiled_backend()
    cases = [
        case(29, [29, 17], ["first", "question"], prefix),
        case(31, [31, 31], ["none", "none"], prefix),
        case(50, [23, 50], ["scattered", "none"], prefix, left=True),
        case(5, [5, 2], ["all", "first"], prefix),  # window larger than the sequence
        case(47, [0, 47], ["none", "all"], prefix),  # more global tokens than are projected back
    ]
    for place, each in enumerate(cases):
        layer = layer_of(each)
        with torch._dynamo.config.patch(error_on_recompile=place > 0):
            found = results(layer, backend)
        assert_close(found, results(layer))


def test_prefix_outside_the_softmax() -> None:
    """Eq. 3: rows outside the softmax, whose part every row gets through its own projections."""

    def part(query: Tensor, keys: Tensor, values: Tensor, dropout: float) -> Tensor:
        return (query @ keys.transpose(-1, -2)).sigmoid() @ values

    layer = layer_of(Case(29, 16, 2, 8, [29, 17], False, ["first", "question"], 0, outside=3, seed=1))
    assert_close(results(layer, compiled_backend(), part), results(layer, part=part))


@pytest.mark.parametrize("length", [1, 29])
def test_operators_are_what_they_say(length: int) -> None:
    """PyTorch's own check: shapes, strides, aliases and gradients as a compiler will rely on them."""
    layer = layer_of(case(length, [length, 1], ["first", "question"], prefix=2))
    assert layer.prefix is not None
    rows = [torch.randn_like(layer.states, requires_grad=True) for _ in range(6)]
    parts = rows[:3], rows[3:], [part.requires_grad_() for part in layer.prefix]
    shared = layer.pattern.is_masked, layer.pattern.is_global, torch.tensor([5]), 2, 8, 0, 0.1
    torch.library.opcheck(compiled._attend, (*parts, *shared))
    parts = tuple([each.detach() for each in part] for part in parts)
    needed = [True, False] * 4
    checks = ("test_schema", "test_faketensor")  # it has no gradient of its own
    torch.library.opcheck(compiled._find_gradients, (layer.direction, *parts, *shared, needed), test_utils=checks)


def test_autocast() -> None:
    layer = layer_of(case(29, [29, 17], ["first", "question"], prefix=2))
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = results(layer, compiled_backend()), results(layer)
    assert found["output"].dtype == torch.bfloat16
    assert_close(found, expected, 0.02)


def dropout_layer() -> Layer:
    layer = layer_of(case(41, [41, 30], ["first", "question"], prefix=2))
    return layer._replace(module=self_attention(16, dropout=0.3).train())


def test_forward_and_backward_drop_the_same_and_leave_the_generator_alone() -> None:
    layer, backend = dropout_layer(), compiled_backend()
    torch.manual_seed(3)
    found = results(layer, backend)
    drawn_next = torch.rand(5)

    torch.manual_seed(3)
    seed = torch.randint(compiled.SEEDS, (1,))  # all that attention draws from the generator
    assert torch.equal(drawn_next, torch.rand(5))
    torch.manual_seed(int(seed))
    assert_close(found, results(layer))


def test_dropout_is_reproducible_and_right_on_average() -> None:
    layer = dropout_layer()
    attend = compiled_backend().longformer_self_attention
    inputs = layer.states, layer.pattern, layer.prefix
    with torch.no_grad():
        torch.manual_seed(1)
        first, second = attend(layer.module, *inputs)[0], attend(layer.module, *inputs)[0]
        torch.manual_seed(1)
        assert torch.equal(attend(layer.module, *inputs)[0], first)
        assert not torch.allclose(second, first)
        drawn = torch.stack([attend(layer.module, *inputs)[0] for _ in range(600)])
        (expected,) = sliding_window.longformer_self_attention(layer.module.eval(), *inputs)
    error = (drawn.mean(dim=0) - expected).abs() / (drawn.std(dim=0) / 600**0.5).clamp(min=1e-6)
    assert error.max() < 5.5  # standard errors, of 1,312 numbers


def test_only_what_is_trained_gets_a_gradient() -> None:
    """Whatever is frozen is given to the operator of the gradient as such."""
    layer, backend = layer_of(case(29, [29, 17], ["first", "question"], prefix=2)), compiled_backend()
    layer.module.requires_grad_(False)
    assert layer.prefix is not None
    keys, values = layer.prefix.keys.requires_grad_(), layer.prefix.values
    seen = []
    find = compiled._find_gradients

    def recorded(*arguments: Any) -> Any:
        seen.append(arguments[-1])
        return find(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_find_gradients", recorded)
        prefix = PrefixedKeys(keys, values)
        (output,) = backend.longformer_self_attention(layer.module, layer.states, layer.pattern, prefix)
        (gradient,) = torch.autograd.grad((output * layer.direction).sum(), keys)
    assert seen and all(sum(needed) == 1 and needed[-2] for needed in seen)
    (output,) = sliding_window.longformer_self_attention(layer.module, layer.states, layer.pattern, prefix)
    (expected,) = torch.autograd.grad((output * layer.direction).sum(), keys)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-5)


def test_weights_that_are_asked_for_break_the_graph() -> None:
    layer = layer_of(case(29, [29, 17], ["first", "question"]))

    def attend(states: Tensor) -> Any:
        pattern = AttentionPattern(layer.pattern.is_masked, layer.pattern.is_global)
        return compiled.longformer_self_attention(layer.module, states, pattern, output_attentions=True)

    with torch.no_grad():
        assert len(attend(layer.states)) == 3
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(attend, fullgraph=True, backend="eager")(layer.states)


def with_lora() -> Any:
    config = LoraConfig(target_modules=["query", "key_global"], r=2, modules_to_save=["classifier"])
    model = get_peft_model(tiny_model(**SMALL), config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return model


MODELS = {
    "bare": lambda: tiny_model(task="FEATURE_EXTRACTION", **SMALL),
    "propagation": lambda: adapt(tiny_model(**SMALL), "propagation", prefix_dropout=0.0),
    "tuning": lambda: adapt(tiny_model(**SMALL), "tuning", prefix_dropout=0.0),
    "kernel": lambda: adapt(tiny_model(**SMALL), "propagation", prefix_dropout=0.0, kernel="exp", alpha=0.5),
    "LoRA": with_lora,
}
# What differs between these and the others is seen by the first stage of the compiler, which is faster alone.
FIRST_STAGE = ("bare", "kernel", "LoRA")


@pytest.mark.parametrize("name", MODELS)
def test_whole_models(name: str) -> None:
    model = MODELS[name]()
    attention.install(model, backend="sdpa")
    backend = "eager" if name in FIRST_STAGE else "aot_eager"
    fast = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)

    def step(run: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        model.zero_grad()
        output = run(**inputs)[0]
        output.square().mean().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        assert gradients
        return {"output": output.detach()} | gradients

    for place, lengths in enumerate([[13, 6], [17, 5], [3, 2]]):
        inputs = batch(model, lengths)
        expected = step(model, inputs)
        with torch._dynamo.config.patch(error_on_recompile=place > 0):
            assert_close(step(fast, inputs), expected)

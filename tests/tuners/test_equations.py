"""Both methods against the equations written out densely, over models, lengths, windows, globals and padding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
import tiny
from tiny import RELATIVES, batch, both_methods, every_family, tiny_model

ORACLE_ARGUMENT = {"propagation": "propagation", "tuning": "key_values"}
TOLERANCE = 2e-5


def adapt(model: Any, method: str, length: int, **options: Any) -> Any:
    adapted = tiny.adapt(model, method, "FEATURE_EXTRACTION", length, **options)
    adapted.set_prefix(0.5 * torch.randn(adapted.get_prefix().shape))
    return adapted


def assert_follows_equation(model: Any, method: str, inputs: dict[str, Any], length: int, **options: Any) -> None:
    plain = copy.deepcopy(model)
    adapted = adapt(model, method, length, **options)
    prefix = adapted.get_prefix()
    output = adapted(**inputs).last_hidden_state
    leaf = prefix.detach().double().requires_grad_()
    layout = options.get("layout", "paper")
    _, expected = oracle.hidden_states(plain, inputs, layout=layout, **{ORACLE_ARGUMENT[method]: leaf})
    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    assert output.shape == expected.shape
    torch.testing.assert_close(output[real].double(), expected[real], atol=TOLERANCE, rtol=TOLERANCE)

    # The gradient of the prefix, through a loss that reads every real token.
    direction = torch.randn(expected.shape, dtype=torch.float64) * real[..., None]
    (output * direction.float()).sum().backward()
    (gradient,) = torch.autograd.grad((expected * direction).sum(), leaf)
    scale = gradient.abs().max()
    torch.testing.assert_close(prefix.grad.double() / scale, gradient / scale, atol=1e-4, rtol=0)


@st.composite
def long_batches(draw: Any) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(1, 61), min_size=1, max_size=3))
    return {
        "lengths": lengths,
        "left": draw(st.booleans()),
        "windows": draw(st.lists(st.sampled_from([2, 4, 8, 14, 64, 128]), min_size=3, max_size=3)),
        "globals": draw(st.sampled_from(["none", "cls", "question", "scattered", "all"])),
        "prefix": draw(st.integers(1, 11)),
        "layout": draw(st.sampled_from(["paper", "reference"])),
        "mask": draw(st.booleans()),
        "seed": draw(st.integers(0, 100)),
    }


def global_mask(kind: str, shape: torch.Size, seed: int) -> torch.Tensor:
    mask = torch.zeros(shape, dtype=torch.long)
    if kind == "cls":
        mask[:, 0] = 1
    elif kind == "question":
        for row in range(shape[0]):
            mask[row, : 2 + 3 * row] = 1
    elif kind == "scattered":
        mask = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.2).long()
    elif kind == "all":
        mask[:] = 1
    return mask


@both_methods
@settings(max_examples=25)
@given(case=long_batches())
def test_longformer_follows_the_equations(method: str, case: dict[str, Any]) -> None:
    model = tiny_model("longformer", "FEATURE_EXTRACTION", attention_window=case["windows"])
    inputs = batch(model, case["lengths"], case["seed"], case["left"])
    inputs["global_attention_mask"] = global_mask(case["globals"], inputs["input_ids"].shape, case["seed"])
    if not case["mask"] and len(set(case["lengths"])) == 1:
        del inputs["attention_mask"]
    assert_follows_equation(model, method, inputs, case["prefix"], layout=case["layout"])


@both_methods
@settings(max_examples=25)
@given(
    implementation=st.sampled_from(["sdpa", "eager"]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    length=st.integers(1, 9),
    layout=st.sampled_from(["paper", "reference"]),
    left=st.booleans(),
    family=st.sampled_from(["roberta", "bert", "modernbert"]),
)
def test_full_attention_follows_the_equations(
    method: str, implementation: str, lengths: list[int], length: int, layout: str, left: bool, family: str
) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    model.set_attn_implementation(implementation)
    assert_follows_equation(model, method, batch(model, lengths, left=left), length, layout=layout)


@pytest.mark.parametrize("layout", ["paper", "reference"])
@both_methods
@pytest.mark.parametrize("model_type", RELATIVES)
def test_relatives_follow_the_equations(model_type: str, method: str, layout: str) -> None:
    model = tiny_model(model_type, "FEATURE_EXTRACTION")
    assert_follows_equation(model, method, batch(model, [21, 9]), 5, layout=layout)


@pytest.mark.parametrize("task", ["FEATURE_EXTRACTION", "SEQ_CLS", "TOKEN_CLS"])
@both_methods
@every_family
def test_embeddings_or_no_mask_give_the_same(family: str, method: str, task: str) -> None:
    model = tiny_model(family, task)
    adapted = tiny.adapt(model, method, task)
    inputs = batch(model, [19, 19])
    embeds, mask = model.get_input_embeddings()(inputs["input_ids"]), inputs["attention_mask"]
    for given_otherwise in ({"inputs_embeds": embeds, "attention_mask": mask}, {"input_ids": inputs["input_ids"]}):
        torch.testing.assert_close(adapted(**given_otherwise)[0], adapted(**inputs)[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("layout", ["paper", "reference"])
@both_methods
@every_family
def test_callers_position_ids_are_used(family: str, method: str, layout: str) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    inputs = batch(model, [12, 12])
    inputs["position_ids"] = torch.randint(2, 100, (2, 12))
    assert_follows_equation(model, method, inputs, 3, layout=layout)


def test_custom_4d_mask_is_kept_for_the_tokens() -> None:
    model = tiny_model("roberta", "FEATURE_EXTRACTION")
    adapted = adapt(model, "propagation", 4)
    inputs = batch(model, [6, 6])
    causal = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    changed = inputs["input_ids"].clone()
    changed[:, -1] = 7

    first = adapted(input_ids=inputs["input_ids"], attention_mask=causal, output_hidden_states=True)
    other = adapted(input_ids=changed, attention_mask=causal, output_hidden_states=True)
    torch.testing.assert_close(first.hidden_states[1][:, :-1], other.hidden_states[1][:, :-1])
    assert not torch.allclose(first.hidden_states[1][:, -1], other.hidden_states[1][:, -1])

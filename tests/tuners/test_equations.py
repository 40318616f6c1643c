"""All methods against the equations written out densely, over models, lengths, windows, globals and padding."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracle
from one_layer import GLOBALS, global_tokens
from tiny import FAMILIES, METHODS, RELATIVES, adapt, batch, both_methods, every_family, for_all_rows, tiny_model

ORACLE_ARGUMENT = {"propagation": "propagation", "tuning": "key_values"}
both_layouts = pytest.mark.parametrize("layout", ["paper", "reference"])


def assert_follows_equation(
    model: Any, method: str, inputs: dict[str, Any], length: int, split: oracle.Split | None = None, **options: Any
) -> None:
    """The states of real tokens, and the gradients of the prefix and of a trained α."""
    plain = copy.deepcopy(model)
    adapted = adapt(model, method, "FEATURE_EXTRACTION", length, **options)
    adapted.set_prefix(0.5 * torch.randn(adapted.get_prefix().shape))
    learnt = [adapted.get_prefix()]
    if options.get("alpha_mode", "fixed") != "fixed":
        learnt.append(adapted.get_alpha())
        with torch.no_grad():
            learnt[1] += 0.3 * torch.randn(learnt[1].shape)
    leaves = [own.detach().double().requires_grad_() for own in learnt]
    if "kernel" in options:
        split = split_by(options, *leaves[1:])
    layout = options.get("layout", "paper")
    _, expected = oracle.hidden_states(
        plain, inputs, layout=layout, split=split, **{ORACLE_ARGUMENT[method]: leaves[0]}
    )
    output = adapted(**inputs).last_hidden_state
    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    assert output.shape == expected.shape
    tolerance = 2e-5 if split is None else 3e-5
    torch.testing.assert_close(output[real].double(), expected[real], atol=tolerance, rtol=tolerance)

    # Through a loss that reads every real token.
    direction = torch.randn(expected.shape, dtype=torch.float64) * real[..., None]
    (output * direction.float()).sum().backward()
    gradients = torch.autograd.grad((expected * direction).sum(), leaves)
    for own, gradient in zip(learnt, gradients, strict=True):
        scale = gradient.abs().max()
        atol = 1e-4 if split is None else 2e-4
        torch.testing.assert_close(own.grad.double() / scale, gradient / scale, atol=atol, rtol=0)


# --- Eq. 1 and Eq. 2 ------------------------------------------------------------------------------------------------


@both_methods
@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 61), min_size=1, max_size=3),
    left=st.booleans(),
    windows=st.lists(st.sampled_from([2, 4, 8, 14, 64, 128]), min_size=3, max_size=3),
    kind=st.sampled_from(GLOBALS),
    prefix=st.integers(1, 11),
    layout=st.sampled_from(["paper", "reference"]),
    has_mask=st.booleans(),
    seed=st.integers(0, 100),
)
def test_longformer_follows_the_equations(
    method: str, lengths: list[int], left: bool, windows: list[int], kind: str, prefix: int, layout: str,
    has_mask: bool, seed: int,
) -> None:  # fmt: skip
    model = tiny_model("longformer", "FEATURE_EXTRACTION", attention_window=windows)
    inputs = batch(model, lengths, seed, left)
    places = torch.arange(max(lengths))
    inputs["global_attention_mask"] = torch.stack([global_tokens(kind, places) for _ in lengths]).long()
    if not has_mask and len(set(lengths)) == 1:
        del inputs["attention_mask"]
    assert_follows_equation(model, method, inputs, prefix, layout=layout)


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


@both_layouts
@both_methods
@pytest.mark.parametrize("model_type", RELATIVES)
def test_relatives_follow_the_equations(model_type: str, method: str, layout: str) -> None:
    model = tiny_model(model_type, "FEATURE_EXTRACTION")
    assert_follows_equation(model, method, batch(model, [21, 9]), 5, layout=layout)


@both_layouts
@both_methods
@every_family
def test_callers_position_ids_are_used(family: str, method: str, layout: str) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    inputs = batch(model, [12, 12]) | {"position_ids": torch.randint(2, 100, (2, 12))}
    assert_follows_equation(model, method, inputs, 3, layout=layout)


@pytest.mark.parametrize("task", ["FEATURE_EXTRACTION", "SEQ_CLS", "TOKEN_CLS"])
@both_methods
@every_family
def test_embeddings_or_no_mask_give_the_same(family: str, method: str, task: str) -> None:
    model = tiny_model(family, task)
    adapted = adapt(model, method, task)
    inputs = batch(model, [19, 19])
    embeds, mask = model.get_input_embeddings()(inputs["input_ids"]), inputs["attention_mask"]
    for given_otherwise in ({"inputs_embeds": embeds, "attention_mask": mask}, {"input_ids": inputs["input_ids"]}):
        torch.testing.assert_close(adapted(**given_otherwise)[0], adapted(**inputs)[0], atol=1e-6, rtol=1e-6)


# --- Eq. 3 ----------------------------------------------------------------------------------------------------------


def product(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def feature(x: Tensor) -> Tensor:
    return F.elu(x / x.shape[-1] ** 0.25) + 1


DEFINITIONS = {
    "exp": lambda q, k: product(q, k).exp(),
    "rbf": lambda q, k: (-torch.cdist(q, k).square() / (2 * math.sqrt(q.shape[-1]))).exp(),
    "poly": lambda q, k: (product(q, k) + 1) ** 2,
    "linear": lambda q, k: feature(q) @ feature(k).transpose(-1, -2),
}
MODES = ("fixed", "layer", "head", "query")
# All kernels and all modes on every family, and every kernel with every mode on some family.
KERNELS_AND_MODES = [
    (family, kernel, MODES[(place + shift) % 4])
    for shift, family in enumerate(FAMILIES)
    for place, kernel in enumerate(DEFINITIONS)
]


def split_by(options: dict[str, Any], trained: Tensor | None = None) -> oracle.Split:
    """Eq. 3 as the equation says it."""

    def alpha(layer: int, q: Tensor) -> Any:
        if trained is None:
            return options["alpha"]
        if options["alpha_mode"] != "query":
            return trained[layer].reshape(-1, 1, 1)
        of_query = (q * trained[layer][:, None]).sum(-1, keepdim=True) / math.sqrt(q.shape[-1])
        return options["alpha"] * 2 * torch.sigmoid(of_query)

    def split(layer: int, count: int, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        similarity = DEFINITIONS[options["kernel"]](q, k[:, :, :count])
        part = similarity / similarity.sum(dim=-1, keepdim=True) @ v[:, :, :count]
        rest = oracle.softmax_attention(q, k[:, :, count:], v[:, :, count:], visible[..., count:])
        return rest + alpha(layer, q) * part

    return split


@pytest.mark.parametrize(("family", "kernel", "mode"), KERNELS_AND_MODES)
@both_methods
def test_kernels_follow_the_equation(family: str, method: str, kernel: str, mode: str) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    inputs = batch(model, [26, 15])
    if family == "longformer":
        inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
        inputs["global_attention_mask"][0, :3] = inputs["global_attention_mask"][1, 7] = 1
    options = {"kernel": kernel, "alpha": 0.3, "alpha_mode": mode}
    layout = "reference" if mode == "head" else "paper"
    assert_follows_equation(model, method, inputs, 5, layout=layout, **options)


@given(
    lengths=st.lists(st.integers(1, 45), min_size=1, max_size=3),
    length=st.integers(1, 8),
    method=st.sampled_from(sorted(METHODS)),
    family=st.sampled_from(FAMILIES),
    left=st.booleans(),
)
def test_with_the_softmax_share_for_alpha_it_is_the_unsplit_method(
    lengths: list[int], length: int, method: str, family: str, left: bool
) -> None:
    """(1 - λ) softmax + λ Kern_exp is Eq. 1 (and Eq. 2) again: the identity behind the decomposition."""

    def split(layer: int, count: int, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        share = oracle.softmax_share(q, k, visible, count)
        part = product(q, k[:, :, :count]).softmax(dim=-1) @ v[:, :, :count]
        rest = oracle.softmax_attention(q, k[:, :, count:], v[:, :, count:], visible[..., count:])
        return (1 - share) * rest + share * part

    model = tiny_model(family, "FEATURE_EXTRACTION")
    inputs = batch(model, lengths, left=left)
    inputs = for_all_rows(inputs) if family == "longformer" else inputs
    assert_follows_equation(model, method, inputs, length, split)

"""The kernel decomposition (Eq. 3) against its definition, its identity with Eq. 1, and its limits."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prefixprop import PrefixPropagationConfig, count_parameters
from prefixprop.tuners import kernel as kernel_module
from prefixprop.tuners.kernel import PrefixAttention

import oracle
from tiny import (
    FAMILIES,
    METHODS,
    adapt,
    batch,
    both_methods,
    for_all_rows,
    tiny_model,
    trained_head,
)

ORACLE_ARGUMENT = {"propagation": "propagation", "tuning": "key_values"}


def product(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def feature(x: Tensor) -> Tensor:
    return F.elu(x / x.shape[-1] ** 0.25) + 1


DEFINITIONS: dict[str, Any] = {
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


def split_by(kernel: str, alpha: Any) -> oracle.Split:
    """Eq. 3 as the equation says it."""

    def split(layer: int, count: int, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        similarity = DEFINITIONS[kernel](q, k[:, :, :count])
        part = similarity / similarity.sum(dim=-1, keepdim=True) @ v[:, :, :count]
        return (
            oracle.softmax_attention(q, k[:, :, count:], v[:, :, count:], visible[..., count:])
            + alpha(layer, q) * part
        )

    return split


def prepared(family: str, method: str, length: int = 5, **options: Any) -> tuple[Any, Any, dict[str, Tensor]]:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    plain = copy.deepcopy(model)
    adapted = adapt(model, method, "FEATURE_EXTRACTION", length, **options)
    adapted.set_prefix(0.5 * torch.randn(adapted.get_prefix().shape))
    inputs = batch(model, [26, 15])
    if family == "longformer":
        inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
        inputs["global_attention_mask"][0, :3] = 1
        inputs["global_attention_mask"][1, 7] = 1
    return plain, adapted, inputs


@pytest.mark.parametrize(("family", "kernel", "mode"), KERNELS_AND_MODES)
@both_methods
def test_follows_the_equation(family: str, method: str, kernel: str, mode: str) -> None:
    layout = "reference" if mode == "head" else "paper"
    plain, adapted, inputs = prepared(family, method, kernel=kernel, alpha=0.3, alpha_mode=mode, layout=layout)
    own = adapted.get_alpha()
    if mode != "fixed":
        with torch.no_grad():
            own += 0.3 * torch.randn(own.shape)
    trained = torch.tensor(0.3) if mode == "fixed" else own.detach().double().requires_grad_()

    def alpha(layer: int, q: Tensor) -> Tensor:
        if mode == "fixed":
            return trained
        if mode == "query":
            return (
                0.3 * 2 * torch.sigmoid((q * trained[layer][:, None]).sum(-1, keepdim=True) / math.sqrt(q.shape[-1]))
            )
        return trained[layer].reshape(-1, 1, 1)

    leaf = adapted.get_prefix().detach().double().requires_grad_()
    _, expected = oracle.hidden_states(
        plain, inputs, layout=layout, split=split_by(kernel, alpha), **{ORACLE_ARGUMENT[method]: leaf}
    )
    output = adapted(**inputs).last_hidden_state
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(output[real].double(), expected[real], atol=3e-5, rtol=3e-5)

    direction = torch.randn(expected.shape, dtype=torch.float64) * real[..., None]
    (output * direction.float()).sum().backward()
    wanted = [leaf] if mode == "fixed" else [leaf, trained]
    found = [adapted.get_prefix()] if mode == "fixed" else [adapted.get_prefix(), own]
    for mine, gradient in zip(found, torch.autograd.grad((expected * direction).sum(), wanted), strict=True):
        scale = gradient.abs().max()
        torch.testing.assert_close(mine.grad.double() / scale, gradient / scale, atol=2e-4, rtol=0)


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
    model = tiny_model(family, "FEATURE_EXTRACTION")
    plain = copy.deepcopy(model)
    adapted = adapt(model, method, "FEATURE_EXTRACTION", length)
    adapted.set_prefix(0.5 * torch.randn(adapted.get_prefix().shape))
    inputs = batch(model, lengths, left=left)
    if family == "longformer":
        inputs = for_all_rows(inputs)

    def split(layer: int, count: int, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        share = oracle.softmax_share(q, k, visible, count)
        part = product(q, k[:, :, :count]).softmax(dim=-1) @ v[:, :, :count]
        rest = oracle.softmax_attention(q, k[:, :, count:], v[:, :, count:], visible[..., count:])
        return (1 - share) * rest + share * part

    prefix = adapted.get_prefix().detach()
    _, expected = oracle.hidden_states(plain, inputs, split=split, **{ORACLE_ARGUMENT[method]: prefix})
    real = inputs["attention_mask"].bool()
    output = adapted(**inputs).last_hidden_state
    torch.testing.assert_close(output[real].double(), expected[real], atol=3e-5, rtol=3e-5)


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
    alpha, is_trained = model.get_alpha(), mode != "fixed"
    count = count_parameters(model)
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

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    found, expected = [], []
    for attend, results in ((part, found), (part._attend, expected)):
        torch.manual_seed(3)
        if attend is part:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                output = attend(0, *leaves, dropout)
            assert not any(count % (2 * 2 * length) == 0 and count > 2 * 2 * length * 8 for count in kept)
        else:  # the same masks, drawn block by block
            output = torch.cat(
                [attend(0, block, *leaves[1:], dropout) for block in leaves[0].split(16, dim=2)], dim=2
            )
        results += [output.detach(), *torch.autograd.grad(output.square().sum(), [*leaves, part.weight])]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)

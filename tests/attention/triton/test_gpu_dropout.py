"""Attention dropout of both backends: on the probabilities, from the seed, with one mask for both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from prefixprop.attention import AttentionPattern, sliding_window
from prefixprop.attention.prefix import PrefixedKeys

from one_layer import attention

pytest.importorskip("triton")
from prefixprop.attention.triton import longformer as triton_backend
from prefixprop.attention.triton.tiles import draw_dropout_seeds

both_backends = pytest.mark.parametrize("backend", [sliding_window, triton_backend], ids=["sdpa", "triton"])


def pattern(batch: int, length: int, first: int) -> AttentionPattern:
    masked = torch.zeros(batch, length, dtype=torch.bool)
    everywhere = masked.clone()
    everywhere[:, :first] = True
    return AttentionPattern(masked, everywhere)


def test_words_of_several_things_from_one_draw() -> None:
    like = torch.empty(1)
    seeds = draw_dropout_seeds((5, 3, 8), like, 0.5)
    assert [len(drawn) for drawn in seeds] == [5, 3, 8]
    assert all(drawn.data_ptr() % 16 == seeds[0].data_ptr() % 16 for drawn in seeds)
    assert len(torch.cat(seeds).unique()) == 16
    assert all(drawn is like for drawn in draw_dropout_seeds((5, 3), like, 0.0))


@both_backends
def test_what_is_dropped_are_single_probabilities(backend: Any) -> None:
    """With equal scores and unit vectors as values, an output is the row of dropped probabilities itself."""
    size, batch, probability = 32, 4, 0.3
    module = attention(window=2 * size, heads=2, size=size, dropout=probability).train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for value in (module.value, module.value_global):
            value.weight[:, :size] = torch.eye(size).repeat(2, 1)
    states = torch.eye(2 * size)[:size].repeat(batch, 1, 1)
    (output,) = backend.longformer_self_attention(module, states, pattern(batch, size, first=3))
    weights = output.detach().unflatten(-1, (2, size)).transpose(1, 2)  # [batch, heads, rows, keys]
    dropped = weights == 0
    torch.testing.assert_close(weights[~dropped] * size, torch.full_like(weights[~dropped], 1 / (1 - probability)),
                               rtol=1e-4, atol=0.0)  # fmt: skip
    for rows in (slice(None), slice(3), slice(3, None)):  # all, global, local
        share = dropped[:, :, rows].float()
        deviation = math.sqrt(probability * (1 - probability) / share.numel())
        assert abs(float(share.mean()) - probability) < 5 * deviation
    masks = dropped.flatten(0, 1)
    assert len(masks.flatten(1).unique(dim=0)) == 2 * batch  # of every example and head its own


@both_backends
def test_mean_over_masks_is_the_output_without_dropout(backend: Any) -> None:
    count, length = 36, 18
    module = attention(window=8, heads=1, size=16, dropout=0.2)
    states = torch.randn(1, length, 16)
    prefix = PrefixedKeys(*torch.randn(2, 1, 1, 3, 16))
    with torch.no_grad():
        (expected,) = sliding_window.longformer_self_attention(module, states, pattern(1, length, 2), prefix)
        module.train()
        many = states.expand(count, -1, -1)
        (drawn,) = backend.longformer_self_attention(module, many, pattern(count, length, 2), prefix)
    assert (drawn.std(dim=0) > 0).all()
    error = (drawn.mean(dim=0) - expected[0]).abs() / (drawn.std(dim=0) / count**0.5)
    assert error.mean() < 1.3 and error.max() < 6  # 0.8 by chance, but neighbours share masks
    # Projected on the expected rows, which all elements together measure far better than one.
    along = (drawn * expected).sum(dim=(1, 2)) / expected.square().sum()
    assert abs(float(along.mean()) - 1) < 5 * float(along.std()) / count**0.5 < 0.15


@both_backends
def test_reproducible_from_the_seed(backend: Any) -> None:
    module = attention(window=8, heads=1, size=16, dropout=0.2).train()
    states = torch.randn(1, 18, 16)

    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return backend.longformer_self_attention(module, states, pattern(1, 18, 2))[0]

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    module.eval()
    assert torch.equal(draw(1), draw(2))


@both_backends
def test_gradients_use_the_mask_of_the_forward_pass(backend: Any) -> None:
    module = attention(window=8, heads=1, size=16, dropout=0.3).train()
    states = torch.randn(2, 21, 16, requires_grad=True)
    prefix = PrefixedKeys(*torch.randn(2, 1, 1, 3, 16).requires_grad_())
    direction = torch.randn(2, 21, 16)

    def probe(shift: Tensor | float) -> Tensor:
        torch.manual_seed(5)
        (output,) = backend.longformer_self_attention(module, states + shift, pattern(2, 21, 2), prefix)
        return (output * direction).sum()

    found = probe(0.0)
    # The output is linear in the values, so that their gradients give it back.
    values = [prefix.values, *module.value.parameters(), *module.value_global.parameters()]
    leaves = [*values, prefix.keys, states]
    gradients = torch.autograd.grad(found, leaves)
    linear = sum((gradient * leaf).sum() for gradient, leaf in zip(gradients, values, strict=False))
    torch.testing.assert_close(linear, found.detach(), rtol=1e-4, atol=1e-4)
    # Queries and keys: the slope along a random direction of the states, with the same seed.
    shift = torch.randn_like(states)
    step = 3e-3
    with torch.no_grad():
        slope = (probe(step * shift) - probe(-step * shift)) / (2 * step)
    along = (gradients[-1] * shift).sum()
    scale = float(gradients[-1].norm() * shift.norm()) / shift.numel() ** 0.5
    assert abs(float(slope - along)) < 0.02 * scale

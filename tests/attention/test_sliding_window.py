"""The block-wise attention against Hugging Face's own, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prefixprop.attention import AttentionPattern, backends
from prefixprop.attention import longformer_self_attention as fast_attention
from prefixprop.attention.prefix import PrefixedKeys
from prefixprop.attention.sliding_window import attend_with_dropout, draw_kept

from one_layer import Case, assert_close, attention, cases, layer_of, results
from tiny import with_triton


class HuggingFace:
    """Its forward, for any length: padded to whole windows, and cut again."""

    @staticmethod
    def with_weights(module: Any, states: torch.Tensor, pattern: AttentionPattern) -> tuple[torch.Tensor, ...]:
        length = states.shape[1]
        pad = -length % (2 * module.one_sided_attn_window_size)
        masked, everywhere = F.pad(pattern.is_masked, (0, pad), value=True), F.pad(pattern.is_global, (0, pad))
        mask = torch.zeros(masked.shape).masked_fill(masked, -10000.0).masked_fill(everywhere, 10000.0)
        output, local, *rest = module(
            F.pad(states, (0, 0, 0, pad)),
            attention_mask=mask,
            is_index_masked=masked,
            is_index_global_attn=everywhere,
            is_global_attn=bool(everywhere.any()),
            output_attentions=True,
        )
        return (output[:, :length], local[:, :length], *(weights[..., :length] for weights in rest))

    @classmethod
    def longformer_self_attention(cls, module: Any, states: Any, pattern: Any, *_: None) -> tuple[torch.Tensor]:
        return cls.with_weights(module, states, pattern)[:1]


@given(case=cases(longest=70, reach=100))
def test_same_numbers_and_weights_as_hugging_face(case: Case) -> None:
    """Any length, window, global pattern and padding, fully padded examples included."""
    layer = layer_of(case._replace(window=max(case.window, 4)))  # Hugging Face's fails with a smaller one
    assert_close(results(layer), results(layer, HuggingFace), 2e-5)
    output, local, *everywhere = fast_attention(*layer[:3], output_attentions=True)
    their_output, their_local, *their_everywhere = HuggingFace.with_weights(*layer[:3])
    torch.testing.assert_close(output, their_output, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(local, their_local, atol=1e-5, rtol=1e-5)
    assert len(everywhere) == len(their_everywhere)
    for mine, other in zip(everywhere, their_everywhere, strict=True):
        for example, count in enumerate(layer.pattern.is_global.sum(dim=1).tolist()):
            torch.testing.assert_close(mine[example, :, :count], other[example, :, :count], atol=1e-5, rtol=1e-5)


@given(case=cases(longest=70, reach=100), whole_grid=st.booleans())
def test_every_row_sees_a_key(case: Case, whole_grid: bool) -> None:
    """Padding, global rows and what fills the last block too: fused attention may make NaN of a row without keys."""
    bias = layer_of(case).pattern.blocks(case.window // 2, 0, torch.float32, whole_grid).bias
    assert (bias == 0).any(dim=-1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_worse_than_hugging_face(dtype: torch.dtype) -> None:
    layer = layer_of(Case(100, 16, 2, 32, [100, 61], False, ["question", "first"], prefix=0, outside=0, seed=0))
    exact = results(layer, dtype=torch.float64)["output"]
    ours, theirs = (results(layer, *backend, dtype=dtype)["output"] for backend in ((), (HuggingFace,)))
    assert ours.dtype == dtype
    assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm()


# --- dropout: cheap masks, on the probabilities, from the seed, with one mask for both directions -------------------

TRITON = pytest.param("triton", marks=with_triton)
both_backends = pytest.mark.parametrize("backend", ["sdpa", TRITON])


def test_places_are_independent() -> None:
    """No lane of the 64-bit words, and no pair of neighbours, is favoured."""
    kept = draw_kept((100_000, 8), 0.3)[0].float()
    assert (kept.mean(dim=0) - 0.7).abs().max() < 0.01
    assert (torch.corrcoef(kept.t()) - torch.eye(8)).abs().max() < 0.015


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)]
)
def test_same_mask_forward_and_backward(dtype: torch.dtype, tolerance: float) -> None:
    """Against plain autograd on the same mask; a mask redrawn in backward would give other gradients."""
    leaves = [torch.randn(3, 2, rows, 8, dtype=dtype, requires_grad=True) for rows in (5, 9, 9)]
    query, key, value = (leaf.double() for leaf in leaves)
    bias = torch.zeros(3, 1, 5, 9, dtype=dtype)
    bias[1, :, :, 4:] = torch.finfo(dtype).min
    torch.manual_seed(2)
    output = attend_with_dropout(*leaves, bias, 0.3)
    torch.manual_seed(2)
    kept, keep_scale = draw_kept((3, 2, 5, 9), 0.3)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8) + bias.double()
    expected = (F.softmax(scores, dim=-1) * kept * keep_scale) @ value
    direction = torch.randn(3, 2, 5, 8, dtype=dtype)
    found, wanted = (
        [rows, *torch.autograd.grad((rows * direction).sum(), leaves)] for rows in (output, expected.to(dtype))
    )
    assert all(mine.dtype == dtype for mine in found)
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


# --- of a Longformer's layer ----------------------------------------------------------------------------------------


def attend(backend: str, module: Any, states: Tensor, first: int, *given: Any) -> tuple[Tensor, ...]:
    """With the first tokens global."""
    masked = torch.zeros(states.shape[:2], dtype=torch.bool)
    everywhere = (torch.arange(states.shape[1]) < first).expand_as(masked)
    pattern = AttentionPattern(masked, everywhere)
    return backends.choose(backend, states.device).longformer_attention(module, states, pattern, *given)


@both_backends
def test_what_is_dropped_are_single_probabilities(backend: str) -> None:
    """With equal scores and unit vectors as values, an output is the row of dropped probabilities itself."""
    size, batch, probability = 32, 4, 0.3
    module = attention(window=2 * size, heads=2, size=size, dropout=probability).train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for value in (module.value, module.value_global):
            value.weight[:, :size] = torch.eye(size).repeat(2, 1)
    (output,) = attend(backend, module, torch.eye(2 * size)[:size].repeat(batch, 1, 1), 3)
    weights = output.detach().unflatten(-1, (2, size)).transpose(1, 2)  # [batch, heads, rows, keys]
    dropped = weights == 0
    kept = weights[~dropped] * size
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)), rtol=1e-4, atol=0.0)
    for rows in (slice(None), slice(3), slice(3, None)):  # all, global, local
        share = dropped[:, :, rows].float()
        deviation = math.sqrt(probability * (1 - probability) / share.numel())
        assert abs(float(share.mean()) - probability) < 5 * deviation
    masks = dropped.flatten(0, 1)
    assert len(masks.flatten(1).unique(dim=0)) == 2 * batch  # of every example and head its own


@pytest.mark.parametrize(
    ("backend", "asked", "count"),
    [("sdpa", False, 600), ("sdpa", True, 600), pytest.param("triton", False, 36, marks=with_triton)],
)
def test_mean_over_masks_is_the_output_without_dropout(backend: str, asked: bool, count: int) -> None:
    """Also where somebody asks for the probabilities."""
    module = attention(window=8, heads=1, size=16, dropout=0.2)
    states = torch.randn(1, 18, 16)
    given = PrefixedKeys(*torch.randn(2, 1, 1, 3, 16)), None, asked
    with torch.no_grad():
        expected = attend("sdpa", module, states, 2, *given)[0]
        module.train()
        drawn = attend(backend, module, states.expand(count, -1, -1), 2, *given)[0]
    assert (drawn.std(dim=0) > 0).all()
    error = (drawn.mean(dim=0) - expected[0]).abs() / (drawn.std(dim=0) / count**0.5)
    assert error.mean() < 1.3 and error.max() < 6  # 0.8 by chance, but neighbours share masks
    # Projected on the expected rows, which all elements together measure far better than one.
    along = (drawn * expected).sum(dim=(1, 2)) / expected.square().sum()
    assert abs(float(along.mean()) - 1) < 5 * float(along.std()) / count**0.5 < 0.15


@both_backends
def test_gradients_use_the_mask_of_the_forward_pass(backend: str) -> None:
    module = attention(window=8, heads=1, size=16, dropout=0.3).train()
    states = torch.randn(2, 21, 16, requires_grad=True)
    prefix = PrefixedKeys(*torch.randn(2, 1, 1, 3, 16).requires_grad_())
    direction = torch.randn(2, 21, 16)

    def probe(shift: Tensor | float) -> Tensor:
        torch.manual_seed(5)
        return (attend(backend, module, states + shift, 2, prefix)[0] * direction).sum()

    found = probe(0.0)
    # The output is linear in the values, so that their gradients give it back.
    values = [prefix.values, *module.value.parameters(), *module.value_global.parameters()]
    gradients = torch.autograd.grad(found, [*values, prefix.keys, states])
    linear = sum((gradient * leaf).sum() for gradient, leaf in zip(gradients, values, strict=False))
    torch.testing.assert_close(linear, found.detach(), rtol=1e-4, atol=1e-4)
    # Queries and keys: the slope along a random direction of the states, with the same seed.
    shift, step = torch.randn_like(states), 3e-3
    with torch.no_grad():
        slope = (probe(step * shift) - probe(-step * shift)) / (2 * step)
    along = (gradients[-1] * shift).sum()
    scale = float(gradients[-1].norm() * shift.norm()) / shift.numel() ** 0.5
    assert abs(float(slope - along)) < 0.02 * scale

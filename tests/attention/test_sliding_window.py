"""The block-wise attention against Hugging Face's own, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from prefixprop.attention import AttentionPattern
from prefixprop.attention import longformer_self_attention as fast_attention

from one_layer import attention


def longformer_self_attention(
    module: Any, states: torch.Tensor, masked: torch.Tensor, everywhere: torch.Tensor, *rest: Any, **options: Any
) -> tuple[torch.Tensor, ...]:
    return fast_attention(module, states, AttentionPattern(masked, everywhere), *rest, **options)


def hugging_face(module: Any, states: torch.Tensor, masked: torch.Tensor, everywhere: torch.Tensor) -> tuple:
    """Hugging Face's forward, for any length: padded to whole windows, and cut again."""
    length = states.shape[1]
    pad = -length % (2 * module.one_sided_attn_window_size)
    masked, everywhere = F.pad(masked, (0, pad), value=True), F.pad(everywhere, (0, pad))
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


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    length, batch = draw(st.integers(1, 70)), draw(st.integers(1, 3))
    return {
        "states": (batch, length),
        "window": draw(st.sampled_from([4, 10, 16, 64, 200])),
        "kept": draw(st.lists(st.integers(0, length), min_size=batch, max_size=batch)),
        "left": draw(st.booleans()),
        "share": draw(st.sampled_from([0.0, 0.02, 0.3, 1.0])),
        "first": draw(st.integers(0, 4)),
        "seed": draw(st.integers(0, 1000)),
    }


def tensors(case: dict[str, Any], hidden: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(case["seed"])
    batch, length = case["states"]
    states = torch.randn(batch, length, hidden, generator=generator)
    masked = torch.arange(length)[None] >= torch.tensor(case["kept"])[:, None]
    masked = masked.flip(1) if case["left"] else masked
    everywhere = torch.rand(batch, length, generator=generator) < case["share"]
    everywhere[:, : case["first"]] = True
    return states, masked, everywhere & ~masked


@given(case=cases())
def test_same_numbers_as_hugging_face(case: dict[str, Any]) -> None:
    """Any length, window, global pattern and padding, fully padded examples included."""
    module = attention(case["window"])
    states, masked, everywhere = tensors(case)
    ours, theirs = states.clone().requires_grad_(), states.clone().requires_grad_()
    (output,) = longformer_self_attention(module, ours, masked, everywhere)
    expected = hugging_face(module, theirs, masked, everywhere)[0]
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)

    direction = torch.randn(output.shape)
    own = torch.autograd.grad((output * direction).sum(), [ours, *module.parameters()], allow_unused=True)
    their = torch.autograd.grad((expected * direction).sum(), [theirs, *module.parameters()], allow_unused=True)
    for mine, other in zip(own, their, strict=True):
        zero = torch.zeros(())
        torch.testing.assert_close(
            mine if mine is not None else zero.expand_as(other if other is not None else zero),
            other if other is not None else zero.expand_as(mine if mine is not None else zero),
            atol=2e-5,
            rtol=1e-4,
        )


@given(case=cases())
def test_same_weights_as_hugging_face(case: dict[str, Any]) -> None:
    module = attention(case["window"])
    states, masked, everywhere = tensors(case)
    output, local, *globals_ = longformer_self_attention(module, states, masked, everywhere, output_attentions=True)
    expected, their_local, *their_globals = hugging_face(module, states, masked, everywhere)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(local, their_local, atol=1e-5, rtol=1e-5)
    assert len(globals_) == len(their_globals)
    for mine, other in zip(globals_, their_globals, strict=True):
        for example, count in enumerate(everywhere.sum(dim=1).tolist()):
            torch.testing.assert_close(mine[example, :, :count], other[example, :, :count], atol=1e-5, rtol=1e-5)


@given(case=cases(), whole_grid=st.booleans())
def test_every_row_sees_a_key(case: dict[str, Any], whole_grid: bool) -> None:
    """Padding, global rows and what fills the last block too: fused attention may make NaN of a row without keys."""
    _, masked, everywhere = tensors(case)
    bias = AttentionPattern(masked, everywhere).blocks(case["window"] // 2, 0, torch.float32, whole_grid).bias
    assert (bias == 0).any(dim=-1).all()


def test_dropout_acts_on_probabilities_that_are_asked_for() -> None:
    """Kept ones grow by 1 / (1 - p), so the mean over masks is the output without dropout."""
    module = attention(window=8, dropout=0.2)
    states = torch.randn(1, 40, 16)
    masked = torch.zeros(1, 40, dtype=torch.bool)
    everywhere = masked.clone()
    everywhere[:, 0] = True
    (expected,) = longformer_self_attention(module, states, masked, everywhere)
    module.train()
    many = states.expand(600, -1, -1), masked.expand(600, -1), everywhere.expand(600, -1)
    with torch.no_grad():
        drawn = longformer_self_attention(module, *many, output_attentions=True)[0]
    assert (drawn.std(dim=0) > 0).all()
    error = (drawn.mean(dim=0) - expected[0]).abs() / (drawn.std(dim=0) / 600**0.5)
    assert error.mean() < 1.1 and error.max() < 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_worse_than_hugging_face(dtype: torch.dtype) -> None:
    module = attention(window=16, size=32)
    states = torch.randn(2, 100, 64)
    masked = torch.arange(100)[None] >= torch.tensor([[100], [61]])
    everywhere = torch.zeros_like(masked)
    everywhere[:, :3] = True
    exact = longformer_self_attention(module.double(), states.double(), masked, everywhere)[0]
    module, states = module.to(dtype), states.to(dtype)
    (ours,) = longformer_self_attention(module, states, masked, everywhere)
    theirs = hugging_face(module, states, masked, everywhere)[0]
    assert ours.dtype == dtype
    assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm()

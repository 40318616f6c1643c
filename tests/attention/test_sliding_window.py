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

from one_layer import Case, assert_close, cases, layer_of, results


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

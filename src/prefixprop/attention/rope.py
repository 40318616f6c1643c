"""ModernBERT's attention in plain PyTorch: rotary position embeddings, with a sliding window or over all rows.

Rows in front of the tokens see every row and are seen by every row, like Longformer's global tokens, but without
projections of their own. Windows are computed as for Longformer (see `sliding_window`); rows that see everything use
PyTorch's fused attention with one bias per key. There is no mask of length × length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart, PrefixedKeys, PrefixPart, outside_softmax
from prefixprop.attention.sliding_window import attend_to_all, local_rows, wide

Angles = tuple[Tensor, Tensor]  # cosines and sines, [batch or 1, length, head size] each


def rotary_attention(
    projected: Tensor,
    angles: Angles,
    heads: int,
    reach: int | None,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    fused_part: FusedPart | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention's rows [batch, length, width] from queries, keys and values, `projected` [batch, length, 3 width].

    Rows see `reach` neighbours on either side, or all rows if it is None. The pattern knows its rows in front. Prefix
    keys are not rotated. With a `prefix_part` no row has the prefix in its softmax, and the part is added (Eq. 3);
    `fused_part` describes the same part for backends that compute it themselves.
    """
    asking, value = projected.unflatten(-1, (3, heads, -1)).split([2, 1], dim=2)  # [batch, length, ., heads, size]
    query, key = (rows.transpose(1, 2) for rows in _ApplyRope.apply(asking, *angles).unbind(2))
    value = value.squeeze(2).transpose(1, 2)
    in_softmax = prefix if prefix_part is None else None
    if reach is None:
        output, _ = attend_to_all(query, key, value, pattern, in_softmax, dropout)
    else:
        output, _ = local_rows(query, key, value, reach, pattern, in_softmax, dropout)
        if count := pattern.front_rows:
            front, _ = attend_to_all(query[:, :, :count], key, value, pattern, in_softmax, dropout)
            output = torch.cat([front, output[:, :, count:]], dim=2)
    if prefix_part is not None:
        output = output + prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    return output.transpose(1, 2).flatten(2)


def geglu(layer: Any, states: Tensor, attended: Tensor) -> Tensor:
    """The second half of a ModernBertEncoderLayer: residual, norm and gated feed-forward after its attention."""
    states = states + attended
    return states + layer.mlp(layer.mlp_norm(states))


class _ApplyRope(torch.autograd.Function):
    """Rotary positions of rows [batch, length, ., heads, size], four times as fast as Hugging Face's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _apply_rope(rows, cosine, sine)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _apply_rope(gradient, cosine, -sine), None, None


def _apply_rope(rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (i, i + size / 2) of a row by its angle."""
    half = rows.shape[-1] // 2
    exact, sine = rows.to(wide(rows.dtype)), sine[:, :, None, None, :half]
    turned = exact * cosine[:, :, None, None]
    turned[..., :half].addcmul_(exact[..., half:], sine, value=-1)
    turned[..., half:].addcmul_(exact[..., :half], sine)
    return turned.to(rows.dtype)

"""Longformer's self-attention on the Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prefixprop.attention.global_rows import is_plain, split_heads
from prefixprop.attention.hooks import is_watched
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart, PrefixedKeys, PrefixPart, add_prefix_part
from prefixprop.attention.sliding_window import longformer_self_attention as with_weights
from prefixprop.attention.triton.dropout import draw_words
from prefixprop.attention.triton.frozen_ffn import frozen_tail, tail_of
from prefixprop.attention.triton.frozen_layer import attention_of, frozen_layer
from prefixprop.attention.triton.launch_attention import ALL_ROWS
from prefixprop.attention.triton.operator import attend, longformer_attention
from prefixprop.attention.triton.pattern import DevicePattern
from prefixprop.attention.triton.prefix_part import fits
from prefixprop.attention.triton.residual_norm import residual_norm

PROJECTIONS = ("query", "key", "value", "key_global", "value_global")


def longformer_self_attention(
    module: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, ...]:
    """What the function of this name in `sliding_window` returns; probabilities that are asked for come from it."""
    if output_attentions:
        return with_weights(module, hidden_states, pattern, prefix, prefix_part, output_attentions)
    dropout = module.dropout if module.training else 0.0
    linears = [getattr(module, name) for name in PROJECTIONS]
    in_softmax = prefix if prefix_part is None else None
    if prefix_part is None and all(is_plain(linear) for linear in (*linears, module.query_global)):
        dtype = compute_type(hidden_states)
        states = hidden_states.to(dtype).contiguous()
        if pattern.front_rows == 0:
            linears = linears[:3]
        output = longformer_attention(
            states,
            torch.cat([linear.weight for linear in linears]).to(dtype),
            torch.cat([linear.bias for linear in linears]).to(dtype),
            module.query_global.weight.to(dtype),
            module.query_global.bias.to(dtype),
            as_rows(in_softmax, states),
            *_arguments(module, pattern, in_softmax, dropout),
        )
        return (output,)

    query, key, value, far_key, far_value = (linear(hidden_states) for linear in linears)
    query = torch.where(pattern.is_global[..., None], module.query_global(hidden_states), query)
    front = as_rows(in_softmax, query).flatten(0, 1)
    near = torch.cat([torch.cat([rows.flatten(0, 1) for rows in (query, key, value)], dim=1), _padded(front)])
    far = torch.cat([torch.cat([rows.flatten(0, 1) for rows in (far_key, far_value)], dim=1), front])
    output = attend(near, far, *_arguments(module, pattern, in_softmax, dropout))
    if prefix_part is not None:
        by_head = [split_heads(rows, module.num_heads) for rows in (query, key, value, far_key, far_value)]
        output = add_prefix_part(output, prefix_part, by_head, prefix, pattern, dropout)
    return (output,)


def whole_layer(
    layer: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    prefixed_keys: Callable[[], PrefixedKeys | None],
    part: FusedPart | None,
    has_other_part: bool,
    learning_rows: int | None,
) -> Tensor | None:
    """The output of a layer whose weights are all frozen, or all but those of attention; None for other layers."""
    if torch.compiler.is_compiling():
        return None
    dtype = compute_type(hidden_states)
    tail = tail_of(layer, dtype)
    if tail is None:
        return None
    hidden_states = hidden_states.to(dtype)  # autocast has float32 in front of the first layer
    # Outside the softmax, only rows of the sequence are met in one piece, no trained keys (Eq. 2).
    size = layer.attention.self.head_dim
    if not has_other_part and (part is None or fits(pattern.rows_outside_softmax, size, hidden_states)):
        attention = attention_of(layer, dtype)
        if attention is not None:
            prefix, own = prefixed_keys(), layer.attention.self
            arguments = _arguments(own, pattern, prefix, own.dropout if own.training else 0.0)
            rows = as_rows(prefix, hidden_states)
            learning = ALL_ROWS if learning_rows is None else learning_rows
            return frozen_layer(layer, hidden_states, attention, tail, arguments, rows, part, learning)
    (rows,) = layer.attention.self(hidden_states, attention_mask=pattern)
    return frozen_tail(layer, rows.to(dtype), hidden_states, tail)


def residual_output(
    original: Callable[..., Tensor], module: Any, hidden_states: Tensor, input_tensor: Tensor
) -> Tensor:
    """Dense, dropout, residual and LayerNorm of a layer's output; the last three in one pass."""
    norm, dropout = module.LayerNorm, module.dropout
    untouched = type(norm) is nn.LayerNorm and type(dropout) is nn.Dropout
    if not untouched or is_watched(norm) or is_watched(dropout):
        return original(hidden_states, input_tensor)
    return residual_norm(module.dense(hidden_states), input_tensor, norm, dropout.p if dropout.training else 0.0)


def compute_type(states: Tensor) -> torch.dtype:
    """The type that a projection would have, under autocast too."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def _arguments(module: Any, pattern: AttentionPattern, prefix: PrefixedKeys | None, dropout: float) -> tuple:
    shape = module.num_heads, module.head_dim, module.one_sided_attn_window_size
    return kernel_arguments(*shape, pattern, prefix, dropout)


def kernel_arguments(
    heads: int, size: int, reach: int, pattern: AttentionPattern, prefix: PrefixedKeys | None, dropout: float
) -> tuple:
    """What the attention's operators take beside projections: a DevicePattern, Words and a Shape, spelt out."""
    prefix_keys = 0 if prefix is None else prefix.keys.shape[2]
    batch, length = pattern.is_masked.shape
    device_pattern = pattern.prepared(DevicePattern.of, prefix_keys, heads)
    return (
        *device_pattern,
        *draw_words((batch * heads * length, batch * (length + prefix_keys)), device_pattern.arrivals, dropout),
        heads,
        size,
        reach,
        prefix_keys,
        pattern.rows_outside_softmax,
        float(dropout),
    )


def as_rows(prefix: PrefixedKeys | None, rows: Tensor) -> Tensor:
    """Prefix keys and values of every example, [batch, j, 2 width]."""
    if prefix is None:
        return rows.new_empty(rows.shape[0], 0, 2 * rows.shape[2])
    both = torch.stack(prefix, dim=1).to(rows.dtype).permute(0, 3, 1, 2, 4)  # [batch or 1, j, 2, heads, size]
    return both.flatten(2).expand(rows.shape[0], -1, -1)


def _padded(front: Tensor) -> Tensor:
    """Prefix rows have no query."""
    return nn.functional.pad(front, (front.shape[1] // 2, 0))

"""Longformer's self-attention and whole layers with the Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prefixprop.attention.hooks import has_hooks
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart, PrefixedKeys, PrefixPart, add_prefix_part
from prefixprop.attention.sliding_window import is_plain, split_heads
from prefixprop.attention.sliding_window import longformer_self_attention as with_weights
from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.dropout import draw_dropout_seeds
from prefixprop.attention.triton.frozen_ffn import compute_type, ffn_of, frozen_ffn
from prefixprop.attention.triton.frozen_layer import attention_of, frozen_layer
from prefixprop.attention.triton.launch_attention import ALL_ROWS, DropoutSeeds, Shape, project
from prefixprop.attention.triton.pattern import DevicePattern
from prefixprop.attention.triton.prefix_part import fits
from prefixprop.attention.triton.residual_norm import residual_norm
from prefixprop.attention.triton.tiles import GLOBAL
from prefixprop.attention.triton.triton_kernel import function

PROJECTIONS = ("query", "key", "value", "key_global", "value_global")


def longformer_self_attention(
    module: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, ...]:
    """As the function of this name in `sliding_window`, which computes the weights if they are asked for."""
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

    query, key, value, k_global, v_global = (linear(hidden_states) for linear in linears)
    query = torch.where(pattern.is_global[..., None], module.query_global(hidden_states), query)
    front = as_rows(in_softmax, query).flatten(0, 1)
    qkv = torch.cat([torch.cat([rows.flatten(0, 1) for rows in (query, key, value)], dim=1), _padded(front)])
    kv_global = torch.cat([torch.cat([rows.flatten(0, 1) for rows in (k_global, v_global)], dim=1), front])
    output = attend(qkv, kv_global, *_arguments(module, pattern, in_softmax, dropout))
    if prefix_part is not None:
        by_head = [split_heads(rows, module.num_heads) for rows in (query, key, value, k_global, v_global)]
        output = add_prefix_part(output, prefix_part, by_head, prefix, pattern, dropout)
    return (output,)


def whole_layer(
    layer: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    prefixed_keys: Callable[[], PrefixedKeys | None],
    part: FusedPart | None,
    has_other_part: bool,
    grad_rows: int | None,
) -> Tensor | None:
    """The output of a layer whose weights are all frozen, or all but those of attention; None for other layers.

    `part` is what is outside the softmax (Eq. 3) if the kernels support it; `has_other_part`: it is something else.
    `grad_rows`: how many rows at the front of the states need a gradient, None for all.
    """
    dtype = compute_type(hidden_states)
    ffn = ffn_of(layer, dtype)
    if ffn is None:
        return None
    hidden_states = hidden_states.to(dtype)  # autocast has float32 in front of the first layer
    # Outside the softmax, fused layers support rows of the sequence but not trained keys (Eq. 2).
    size = layer.attention.self.head_dim
    if not has_other_part and (part is None or fits(pattern.rows_outside_softmax, size, hidden_states)):
        attention = attention_of(layer, dtype)
        if attention is not None:
            prefix, own = prefixed_keys(), layer.attention.self
            arguments = _arguments(own, pattern, prefix, own.dropout if own.training else 0.0)
            rows = as_rows(prefix, hidden_states)
            learning = ALL_ROWS if grad_rows is None else grad_rows
            return frozen_layer(layer, hidden_states, attention, ffn, arguments, rows, part, learning)
    (rows,) = layer.attention.self(hidden_states, attention_mask=pattern)
    return frozen_ffn(layer, rows.to(dtype), hidden_states, ffn)


def residual_output(
    original: Callable[..., Tensor], module: Any, hidden_states: Tensor, input_tensor: Tensor
) -> Tensor:
    """The output of a LongformerSelfOutput or LongformerOutput, with dropout, residual and norm in one kernel."""
    norm, dropout = module.LayerNorm, module.dropout
    untouched = type(norm) is nn.LayerNorm and type(dropout) is nn.Dropout
    if not untouched or has_hooks(norm) or has_hooks(dropout):
        return original(hidden_states, input_tensor)
    return residual_norm(module.dense(hidden_states), input_tensor, norm, dropout.p if dropout.training else 0.0)


def _arguments(module: Any, pattern: AttentionPattern, prefix: PrefixedKeys | None, dropout: float) -> tuple:
    shape = module.num_heads, module.head_dim, module.one_sided_attn_window_size
    return kernel_arguments(*shape, pattern, prefix, dropout)


def kernel_arguments(
    heads: int, size: int, reach: int, pattern: AttentionPattern, prefix: PrefixedKeys | None, dropout: float
) -> tuple:
    """The flat arguments of attention besides projections: DevicePattern, DropoutSeeds and Shape."""
    prefix_keys = 0 if prefix is None else prefix.keys.shape[2]
    batch, length = pattern.is_masked.shape
    device_pattern = pattern.prepared(DevicePattern.of, prefix_keys, heads)
    return (
        *device_pattern,
        *draw_dropout_seeds(
            (batch * heads * length, batch * (length + prefix_keys)), device_pattern.arrivals, dropout
        ),
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


def _longformer_forward(
    states: Tensor, weight: Tensor, bias: Tensor, query_weight: Tensor, query_bias: Tensor, prefix: Tensor,
    kind: Tensor, tokens: Tensor, always_visible_keys: Tensor, facts: Tensor, arrivals: Tensor,
    row_seeds: Tensor, column_seeds: Tensor,
    heads: int, size: int, reach: int, prefix_keys: int, outside: int, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Attention from a layer's states [batch, length, width].

    `weight` [5 width, width] and `bias` are those of query, key, value, key_global and value_global one after the
    other, `query_weight` and `query_bias` those of query_global; `prefix` [batch, j, 2 width] is keys and values.
    Where no row is global, only the first three are given, and those of query_global are not used.
    Returns the rows, `qkv` (see tiles) and lse; the last two are for backward only.
    """
    pattern, seeds = (
        DevicePattern(kind, tokens, always_visible_keys, facts, arrivals),
        DropoutSeeds(row_seeds, column_seeds),
    )
    width = heads * size
    qkv = project(states, weight[: 3 * width], bias[: 3 * width], prefix)
    if len(weight) > 3 * width:
        launch_attention.project_rows(states, query_weight, query_bias, tokens, facts, qkv)
    kv_global = project(states, weight[3 * width :], bias[3 * width :], prefix)
    shape = Shape(heads, size, reach, prefix_keys, outside, dropout)
    output, lse = launch_attention.forward(qkv, kv_global, pattern, seeds, shape)
    return output, qkv, lse


def _longformer_keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    states, weight, bias, query_weight, _, prefix, *rest = inputs
    # Keys and values for global rows are not kept: backward projects them again.
    ctx.save_for_backward(states, weight, bias, query_weight, prefix, *output, *rest[:7])
    ctx.shape = Shape(*rest[7:])
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _longformer_backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    result: list[Tensor | None] = [None] * 19
    if gradient is None:
        return tuple(result)
    states, weight, bias, query_weight, prefix, output, qkv, lse, *pattern = ctx.saved_tensors
    d_states, d_weight, d_bias, d_query_weight, d_query_bias, d_prefix = ctx.needs_input_grad[:6]
    width = output.shape[-1]
    kv_global = project(states, weight[3 * width :], bias[3 * width :], prefix)
    dqkv, dkv_global, dq_global = launch_attention.backward(
        gradient.contiguous(),
        output,
        lse,
        qkv,
        kv_global,
        DevicePattern(*pattern[:5]),
        DropoutSeeds(*pattern[5:]),
        ctx.shape,
    )
    count = states.shape[0] * states.shape[1]
    if d_states:
        rows = (dqkv[:count] @ weight[: 3 * width]).addmm_(dkv_global[:count], weight[3 * width :])
        if kv_global.shape[1]:
            launch_attention.project_rows(dq_global, query_weight, None, pattern[1], pattern[3], rows)
        result[0] = rows.view_as(states)
    flat = states.flatten(0, 1)
    if d_weight:
        result[1] = torch.cat([dqkv[:count].t() @ flat, dkv_global[:count].t() @ flat])
    if d_bias:
        result[2] = torch.cat([dqkv[:count].sum(dim=0), dkv_global[:count].sum(dim=0)])
    if kv_global.shape[1] and (d_query_weight or d_query_bias):
        # Only global rows were written.
        queries = dq_global.masked_fill(pattern[0].ne(GLOBAL.value)[..., None], 0).flatten(0, 1)
        result[3], result[4] = queries.t() @ flat, queries.sum(dim=0)
    if d_prefix:
        of_qkv = dqkv[count:, width:]
        result[5] = (of_qkv + dkv_global[count:] if kv_global.shape[1] else of_qkv.contiguous()).view_as(prefix)
    return tuple(result)


def _attend_forward(
    qkv: Tensor, kv_global: Tensor | None,
    kind: Tensor, tokens: Tensor, always_visible_keys: Tensor, facts: Tensor, arrivals: Tensor,
    row_seeds: Tensor, column_seeds: Tensor,
    heads: int, size: int, reach: int, prefix_keys: int, outside: int, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same as `_longformer_forward`, from projections that are given: something is wrapped around them.

    Without `kv_global`, global rows have the queries, keys and values of all rows.
    """
    pattern, seeds = (
        DevicePattern(kind, tokens, always_visible_keys, facts, arrivals),
        DropoutSeeds(row_seeds, column_seeds),
    )
    return launch_attention.forward(
        qkv, kv_global, pattern, seeds, Shape(heads, size, reach, prefix_keys, outside, dropout)
    )


def _attend_keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:2], *output, *inputs[2:9])
    ctx.shape = Shape(*inputs[9:])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _attend_backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 15
    qkv, kv_global, output, lse, *pattern = ctx.saved_tensors
    dqkv, dkv_global, dq_global = launch_attention.backward(
        gradient.contiguous(),
        output,
        lse,
        qkv,
        kv_global,
        DevicePattern(*pattern[:5]),
        DropoutSeeds(*pattern[5:]),
        ctx.shape,
    )
    if kv_global is None:
        return (dqkv, *(None,) * 14)
    count, width = pattern[0].numel(), output.shape[-1]
    is_global = pattern[0].flatten().eq(GLOBAL.value)[:, None]
    dqkv[:count, :width] = torch.where(is_global, dq_global.flatten(0, 1), dqkv[:count, :width])
    return (dqkv, dkv_global, *(None,) * 13)


def longformer_attention(*arguments: Any) -> Tensor:
    return (_longformer_attention if torch.is_grad_enabled() else _longformer_forward)(*arguments)[0]


def attend(*arguments: Any) -> Tensor:
    return (_attend if torch.is_grad_enabled() else _attend_forward)(*arguments)[0]


_longformer_attention = function(_longformer_forward, _longformer_keep, _longformer_backward)
_attend = function(_attend_forward, _attend_keep, _attend_backward)

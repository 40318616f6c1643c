"""A layer's attention as an operation of PyTorch, with its gradient.

Each is an autograd function, which costs little to call. `torch.compile` sees operators instead, which it takes as
they are; their gradients consist of such operators too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.launch_attention import Shape, Words
from prefixprop.attention.triton.pattern import DevicePattern
from prefixprop.attention.triton.tiles import GLOBAL
from prefixprop.attention.triton.triton_kernel import function, operator


def longformer_attention_forward(
    states: Tensor, weight: Tensor, bias: Tensor, query_weight: Tensor, query_bias: Tensor, prefix: Tensor,
    kind: Tensor, tokens: Tensor, listed: Tensor, facts: Tensor, arrivals: Tensor,
    row_words: Tensor, column_words: Tensor,
    heads: int, size: int, reach: int, prefix_keys: int, outside: int, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Attention from a layer's states [batch, length, width].

    `weight` [5 width, width] and `bias` are those of query, key, value, key_global and value_global one after the
    other, `query_weight` and `query_bias` those of query_global; `prefix` [batch, j, 2 width] is keys and values.
    Where no row is global, only the first three are given, and those of query_global have no part in it.
    Returns the rows, `near` (see tiles) and the softmaxes' totals; the last two are for backward alone.
    """
    pattern, words = DevicePattern(kind, tokens, listed, facts, arrivals), Words(row_words, column_words)
    width = heads * size
    near = project(states, weight[: 3 * width], bias[: 3 * width], prefix)
    if len(weight) > 3 * width:
        launch_attention.project_rows(states, query_weight, query_bias, tokens, facts, near)
    far = project(states, weight[3 * width :], bias[3 * width :], prefix)
    shape = Shape(heads, size, reach, prefix_keys, outside, dropout)
    output, log_totals = launch_attention.forward(near, far, pattern, words, shape)
    return output, near, log_totals


def longformer_attention_keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    states, weight, bias, query_weight, _, prefix, *rest = inputs
    # Global rows' keys and values are not kept: one product makes them again, from the states.
    ctx.save_for_backward(states, weight, bias, query_weight, prefix, *output, *rest[:7])
    ctx.shape = Shape(*rest[7:])
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def longformer_attention_backward(
    attention_gradients: Any, add_global_rows: Any, ctx: Any, gradient: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    result: list[Tensor | None] = [None] * 19
    if gradient is None:
        return tuple(result)
    states, weight, bias, query_weight, prefix, output, near, log_totals, *pattern = ctx.saved_tensors
    for_states, for_weight, for_bias, for_query_weight, for_query_bias, for_prefix = ctx.needs_input_grad[:6]
    width = output.shape[-1]
    far = project(states, weight[3 * width :], bias[3 * width :], prefix)
    for_near, for_far, for_query = attention_gradients(
        gradient.contiguous(), output, log_totals, near, far, *pattern, *ctx.shape
    )
    count = states.shape[0] * states.shape[1]
    if for_states:
        rows = (for_near[:count] @ weight[: 3 * width]).addmm_(for_far[:count], weight[3 * width :])
        if far.shape[1]:
            add_global_rows(rows, for_query, query_weight, pattern[1], pattern[3])
        result[0] = rows.view_as(states)
    flat = states.flatten(0, 1)
    if for_weight:
        result[1] = torch.cat([for_near[:count].t() @ flat, for_far[:count].t() @ flat])
    if for_bias:
        result[2] = torch.cat([for_near[:count].sum(dim=0), for_far[:count].sum(dim=0)])
    if far.shape[1] and (for_query_weight or for_query_bias):
        # Elsewhere than in global rows nothing was ever written.
        queries = for_query.masked_fill(pattern[0].ne(GLOBAL.value)[..., None], 0).flatten(0, 1)
        result[3], result[4] = queries.t() @ flat, queries.sum(dim=0)
    if for_prefix:
        of_near = for_near[count:, width:]
        result[5] = (of_near + for_far[count:] if far.shape[1] else of_near.contiguous()).view_as(prefix)
    return tuple(result)


def project(states: Tensor, weight: Tensor, bias: Tensor, prefix: Tensor) -> Tensor:
    """Projections of all tokens, and behind them the prefix rows in the last places: [rows, places * width]."""
    rows = states.flatten(0, 1)
    if prefix.shape[1] == 0 or len(weight) == 0:
        return F.linear(rows, weight, bias)
    result = rows.new_empty(rows.shape[0] + prefix.shape[0] * prefix.shape[1], weight.shape[0])
    torch.addmm(bias, rows, weight.t(), out=result[: rows.shape[0]])
    result[rows.shape[0] :].view(*prefix.shape[:2], -1)[..., -prefix.shape[2] :] = prefix
    return result


def attend_forward(
    near: Tensor, far: Tensor | None,
    kind: Tensor, tokens: Tensor, listed: Tensor, facts: Tensor, arrivals: Tensor,
    row_words: Tensor, column_words: Tensor,
    heads: int, size: int, reach: int, prefix_keys: int, outside: int, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same from projections that were made elsewhere (something is wrapped around them, or wants them too).

    Without `far`, global rows have the queries, keys and values of all rows.
    """
    pattern, words = DevicePattern(kind, tokens, listed, facts, arrivals), Words(row_words, column_words)
    return launch_attention.forward(
        near, far, pattern, words, Shape(heads, size, reach, prefix_keys, outside, dropout)
    )


def attend_keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:2], *output, *inputs[2:9])
    ctx.shape = Shape(*inputs[9:])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def attend_backward(
    attention_gradients: Any, ctx: Any, gradient: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 15
    near, far, output, log_totals, *pattern = ctx.saved_tensors
    for_near, for_far, for_query = attention_gradients(
        gradient.contiguous(), output, log_totals, near, far, *pattern, *ctx.shape
    )
    if far is None:
        return (for_near, *(None,) * 14)
    count, width = pattern[0].numel(), output.shape[-1]
    is_global = pattern[0].flatten().eq(GLOBAL.value)[:, None]
    for_near[:count, :width] = torch.where(is_global, for_query.flatten(0, 1), for_near[:count, :width])
    return (for_near, for_far, *(None,) * 13)


def _attention_gradients(
    gradient: Tensor, output: Tensor, log_totals: Tensor, near: Tensor, far: Tensor | None,
    kind: Tensor, tokens: Tensor, listed: Tensor, facts: Tensor, arrivals: Tensor,
    row_words: Tensor, column_words: Tensor,
    heads: int, size: int, reach: int, prefix_keys: int, outside: int, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    pattern, words = DevicePattern(kind, tokens, listed, facts, arrivals), Words(row_words, column_words)
    shape = Shape(heads, size, reach, prefix_keys, outside, dropout)
    for_near, for_far, for_query = launch_attention.backward(
        gradient, output, log_totals, near, far, pattern, words, shape
    )
    if far is None:  # an operator may not return parts of what it returns
        for_far, for_query = near.new_empty(0), near.new_empty(0)
    return for_near, for_far, for_query


def _add_global_rows(states: Tensor, rows: Tensor, weight: Tensor, tokens: Tensor, facts: Tensor) -> None:
    """Add `rows` @ `weight` to the states of the global tokens."""
    launch_attention.project_rows(rows, weight, None, tokens, facts, states)


def _longformer_attention_shapes(states: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    prefix, heads = rest[3], rest[11]
    batch, length, _ = states.shape
    width = heads * rest[12]
    near = states.new_empty(batch * (length + prefix.shape[1]), 3 * width)
    totals = states.new_empty(batch, heads, length, dtype=torch.float32)
    return states.new_empty(batch, length, width), near, totals


def _attend_shapes(near: Tensor, far: Tensor | None, kind: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    totals = near.new_empty(kind.shape[0], rest[6], kind.shape[1], dtype=torch.float32)
    return near.new_empty(*kind.shape, near.shape[1] // 3), totals


def _gradient_shapes(
    gradient: Tensor, output: Tensor, log_totals: Tensor, near: Tensor, far: Tensor | None, *_: Any
) -> Any:
    if far is None:
        return torch.empty_like(near), near.new_empty(0), near.new_empty(0)
    return torch.empty_like(near), torch.empty_like(far), torch.empty_like(output)


_longformer_attention = function(
    longformer_attention_forward,
    longformer_attention_keep,
    partial(longformer_attention_backward, _attention_gradients, _add_global_rows),
)
_attend = function(attend_forward, attend_keep, partial(attend_backward, _attention_gradients))

_compiled_gradients = operator("attention_gradients", _attention_gradients, _gradient_shapes)
_compiled_add_global_rows = operator("add_global_rows", _add_global_rows, lambda *_: None, mutates=("states",))
_compiled_longformer_attention = operator(
    "longformer_attention", longformer_attention_forward, _longformer_attention_shapes
)
_compiled_longformer_attention.register_autograd(
    partial(longformer_attention_backward, _compiled_gradients, _compiled_add_global_rows),
    setup_context=longformer_attention_keep,
)
_compiled_attend = operator("attend", attend_forward, _attend_shapes)
_compiled_attend.register_autograd(partial(attend_backward, _compiled_gradients), setup_context=attend_keep)


def longformer_attention(*arguments: Any) -> Tensor:
    if torch.compiler.is_compiling():
        return _compiled_longformer_attention(*arguments)[0]
    return (_longformer_attention if torch.is_grad_enabled() else longformer_attention_forward)(*arguments)[0]


def attend(*arguments: Any) -> Tensor:
    if torch.compiler.is_compiling():
        return _compiled_attend(*arguments)[0]
    return (_attend if torch.is_grad_enabled() else attend_forward)(*arguments)[0]

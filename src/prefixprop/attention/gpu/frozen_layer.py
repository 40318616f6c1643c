"""A whole Longformer layer with frozen weights as one operation.

Nothing of what it saves is for weights, gradients of the residual stream are added where they are made, and the host
has one function to call where it had a tree of modules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention.gpu import hidden_rows, launch, residual_norm
from prefixprop.attention.gpu.dropout import draw_words
from prefixprop.attention.gpu.kernel import function
from prefixprop.attention.gpu.launch import Shape, Words
from prefixprop.attention.gpu.operator import project
from prefixprop.attention.gpu.pattern import DevicePattern


class Weights(NamedTuple):
    """Of one layer; `projections` are those of query, key, value, key_global and value_global one after the other."""

    projections: Tensor
    projections_bias: Tensor
    query_global: Tensor
    query_global_bias: Tensor
    attended: Tensor
    attended_bias: Tensor
    attended_scale: Tensor
    attended_shift: Tensor
    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor
    outer_scale: Tensor
    outer_shift: Tensor


class Dropout(NamedTuple):
    """Probability after attention and feed-forward, and the words of its masks (see `dropout`)."""

    probability: float
    attended_rows: Tensor
    attended_columns: Tensor
    outer_rows: Tensor
    outer_columns: Tensor


def weights_of(layer: Any, dtype: torch.dtype) -> Weights | None:
    """The layer's weights, or None where it is not frozen, or somebody waits for one of its parts to be called."""
    attention, feed_forward = layer.attention, layer.output
    own = attention.self
    projections = (own.query, own.key, own.value, own.key_global, own.value_global)
    linears = (*projections, own.query_global, attention.output.dense, layer.intermediate.dense, feed_forward.dense)
    norms = (attention.output.LayerNorm, feed_forward.LayerNorm)
    others = (attention, own, attention.output, layer.intermediate, feed_forward, attention.output.dropout)
    activation = layer.intermediate.intermediate_act_fn
    parts = (*linears, *norms, *others, feed_forward.dropout, activation)
    if any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts):
        return None
    drops = (attention.output.dropout, feed_forward.dropout)
    if len({(drop.p, drop.training, norm.eps) for drop, norm in zip(drops, norms, strict=True)}) > 1:
        return None
    if type(activation) is not GELUActivation or any(type(norm) is not nn.LayerNorm for norm in norms):
        return None
    if any(type(linear) is not nn.Linear for linear in linears):
        return None
    pairs = [(part.weight, part.bias) for part in (*linears, *norms)]
    if any(weight.requires_grad or bias.requires_grad or weight.dtype != dtype for weight, bias in pairs):
        return None
    return Weights(
        torch.cat([weight for weight, _ in pairs[:5]]),
        torch.cat([bias for _, bias in pairs[:5]]),
        *pairs[5],
        *pairs[6],
        *pairs[9],
        *pairs[7],
        *pairs[8],
        *pairs[10],
    )


def frozen_layer(
    layer: Any, states: Tensor, weights: Weights, pattern: tuple, prefix: Tensor, part_weight: float = 0.0
) -> Tensor:
    """`pattern` is what the attention's operators take: a DevicePattern, Words and a Shape, spelt out; `part_weight`
    is the α of a part for hidden rows (see `hidden_rows`), if there is one."""
    rows = states.shape[0] * states.shape[1]
    probability = layer.output.dropout.p if layer.output.dropout.training else 0.0
    counts = (rows, states.shape[2], rows, states.shape[2])
    words = [draw_words(count, weights.outer_shift, probability) for count in counts]
    keeps = torch.is_grad_enabled() and (states.requires_grad or prefix.requires_grad)
    numbers = (layer.output.LayerNorm.eps, keeps, part_weight)
    run = _layer if keeps else _forward
    return run(states.contiguous(), prefix, *pattern, *weights, probability, *words, *numbers)[0]


def _unpack(arguments: tuple) -> tuple[DevicePattern, Words, Shape, Weights, Dropout]:
    pattern, words, shape = DevicePattern(*arguments[:5]), Words(*arguments[5:7]), Shape(*arguments[7:13])
    return pattern, words, shape, Weights(*arguments[13:27]), Dropout(*arguments[27:32])


def _forward(states: Tensor, prefix: Tensor, *arguments: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The layer's output, and what backward needs."""
    pattern, words, shape, weights, dropout = _unpack(arguments)
    epsilon, keeps, part_weight = arguments[32:]
    width = states.shape[-1]
    near = project(states, weights.projections[: 3 * width], weights.projections_bias[: 3 * width], prefix)
    launch.project_rows(states, weights.query_global, weights.query_global_bias, pattern.tokens, pattern.facts, near)
    far = project(states, weights.projections[3 * width :], weights.projections_bias[3 * width :], prefix)
    rows, log_totals = launch.forward(near, far, pattern, words, shape)
    summed = rows if not part_weight else hidden_rows.add_part(rows, near, far, pattern, words, shape, part_weight)
    del far  # backward makes it again
    attended, attended_sum, attended_moments = residual_norm.normalise(
        F.linear(summed, weights.attended, weights.attended_bias),
        states,
        weights.attended_scale,
        weights.attended_shift,
        dropout.attended_rows,
        dropout.attended_columns,
        epsilon,
        dropout.probability,
        keeps,
    )
    inner = F.linear(attended, weights.inner, weights.inner_bias)
    output, output_sum, output_moments = residual_norm.normalise(
        F.linear(F.gelu(inner), weights.outer, weights.outer_bias),
        attended,
        weights.outer_scale,
        weights.outer_shift,
        dropout.outer_rows,
        dropout.outer_columns,
        epsilon,
        dropout.probability,
        keeps,
    )
    return output, (near, rows, log_totals, attended_sum, attended_moments, inner, output_sum, output_moments)


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    states, prefix, *kept = ctx.saved_tensors
    near, rows, log_totals, attended_sum, attended_moments, inner, output_sum, output_moments = kept[:8]
    pattern, words, shape, weights, dropout = _unpack(_with_numbers(kept[8:], ctx.numbers))
    width = states.shape[-1]
    flat = (-1, width)

    # Feed-forward: the residual's gradient takes up the other path's.
    for_attended, for_outer = residual_norm.gradients(
        gradient.contiguous(),
        output_sum,
        output_moments,
        weights.outer_scale,
        dropout.outer_rows,
        dropout.outer_columns,
        dropout.probability,
    )
    for_inner = (for_outer if dropout.probability else for_attended).view(flat) @ weights.outer
    torch.ops.aten.gelu_backward.grad_input(for_inner, inner.view(for_inner.shape), grad_input=for_inner)
    for_attended.view(flat).addmm_(for_inner, weights.inner)
    del for_inner, for_outer

    # Attention
    for_states, for_update = residual_norm.gradients(
        for_attended,
        attended_sum,
        attended_moments,
        weights.attended_scale,
        dropout.attended_rows,
        dropout.attended_columns,
        dropout.probability,
    )
    for_rows = (for_update if dropout.probability else for_states).view(flat) @ weights.attended
    far = project(states, weights.projections[3 * width :], weights.projections_bias[3 * width :], prefix)
    for_near, for_far, for_query = launch.backward(
        for_rows.view_as(rows), rows, log_totals, near, far, pattern, words, shape
    )
    if part_weight := ctx.numbers[-1]:
        results = for_near, for_far, for_query
        hidden_rows.add_gradients(for_rows, near, far, pattern, words, shape, part_weight, results)
    count = states.shape[0] * states.shape[1]
    result = for_states.view(flat)
    result.addmm_(for_near[:count], weights.projections[: 3 * width])
    result.addmm_(for_far[:count], weights.projections[3 * width :])
    launch.project_rows(for_query, weights.query_global, None, pattern.tokens, pattern.facts, result)
    for_prefix = None
    if ctx.needs_input_grad[1]:
        for_prefix = (for_near[count:, width:] + for_far[count:]).view(prefix.shape)
    return (for_states, for_prefix, *(None,) * 35)


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, tuple[Tensor, ...]]) -> None:
    states, prefix, *arguments = inputs
    ctx.save_for_backward(states, prefix, *output[1], *(value for value in arguments if isinstance(value, Tensor)))
    ctx.numbers = [None if isinstance(value, Tensor) else value for value in arguments]


def _with_numbers(tensors: list[Tensor], numbers: list[Any]) -> tuple:
    """The arguments again, tensors in the places where no number is."""
    remaining = iter(tensors)
    return tuple(next(remaining) if number is None else number for number in numbers)


_layer = function(_forward, _keep, _backward)

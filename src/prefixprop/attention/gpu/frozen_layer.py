"""A whole Longformer layer with frozen weights as one operation.

Nothing of what it saves is for weights, gradients of the residual stream are added where they are made, and the host
has one function to call where it had a tree of modules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from prefixprop.attention.gpu import frozen_tail, launch, prefix_part
from prefixprop.attention.gpu.frozen_tail import Dropout, KeptTail, TailWeights, is_frozen
from prefixprop.attention.gpu.launch import ALL_ROWS, Shape, Words
from prefixprop.attention.gpu.operator import project
from prefixprop.attention.gpu.pattern import DevicePattern
from prefixprop.attention.gpu.triton_kernel import function
from prefixprop.attention.watching import is_watched


class AttentionWeights(NamedTuple):
    """`projections` are those of query, key, value, key_global and value_global one after the other."""

    projections: Tensor
    projections_bias: Tensor
    query_global: Tensor
    query_global_bias: Tensor


def attention_weights_of(layer: Any, dtype: torch.dtype) -> AttentionWeights | None:
    """The weights, or None where they are not frozen, or somebody waits for one of the parts to be called."""
    own = layer.attention.self
    linears = (own.query, own.key, own.value, own.key_global, own.value_global, own.query_global)
    if any(is_watched(part) for part in (own, *linears)):
        return None
    if any(type(linear) is not nn.Linear or not is_frozen(linear, dtype) for linear in linears):
        return None
    projections = torch.cat([linear.weight for linear in linears[:5]])
    projections_bias = torch.cat([linear.bias for linear in linears[:5]])
    return AttentionWeights(projections, projections_bias, own.query_global.weight, own.query_global.bias)


def frozen_layer(
    layer: Any,
    states: Tensor,
    weights: AttentionWeights,
    tail: TailWeights,
    pattern: tuple,
    prefix: Tensor,
    part_weight: float = 0.0,
    learning_rows: int = ALL_ROWS,
) -> Tensor:
    """`pattern` is what the attention's operators take: a DevicePattern, Words and a Shape, spelt out; `part_weight`
    is the α of a part for prefix rows (see `prefix_part`), if there is one. Of `states`, the first `learning_rows`
    rows get their gradient, which are global then; the others get something that nobody may read."""
    keeps = torch.is_grad_enabled() and (states.requires_grad or prefix.requires_grad)
    dropout = Dropout.draw(layer, states)
    numbers = (layer.output.LayerNorm.eps, keeps, part_weight, learning_rows)
    run = _layer if keeps else _forward
    return run(states.contiguous(), prefix, *pattern, *weights, *tail, *dropout, *numbers)[0]


def _unpack(arguments: tuple) -> tuple[DevicePattern, Words, Shape, AttentionWeights, TailWeights, Dropout]:
    pattern, words, shape = DevicePattern(*arguments[:5]), Words(*arguments[5:7]), Shape(*arguments[7:13])
    weights, tail = AttentionWeights(*arguments[13:17]), TailWeights(*arguments[17:27])
    return pattern, words, shape, weights, tail, Dropout(*arguments[27:32])


def _forward(states: Tensor, prefix: Tensor, *arguments: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The layer's output, and what backward needs."""
    pattern, words, shape, weights, tail, dropout = _unpack(arguments)
    epsilon, keeps, part_weight, _ = arguments[32:]
    width = states.shape[-1]
    near = project(states, weights.projections[: 3 * width], weights.projections_bias[: 3 * width], prefix)
    launch.project_rows(states, weights.query_global, weights.query_global_bias, pattern.tokens, pattern.facts, near)
    far = project(states, weights.projections[3 * width :], weights.projections_bias[3 * width :], prefix)
    rows, log_totals = launch.forward(near, far, pattern, words, shape)
    summed = rows if not part_weight else prefix_part.add_part(rows, near, far, pattern, words, shape, part_weight)
    del far  # backward makes it again
    output, kept = frozen_tail.forward(summed, states, tail, dropout, epsilon, keeps)
    return output, (near, rows, log_totals, *kept)


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    states, prefix, near, rows, log_totals, *kept = ctx.saved_tensors
    pattern, words, shape, weights, tail, dropout = _unpack(_with_numbers(kept[5:], ctx.numbers))
    part_weight, learning = ctx.numbers[-2:]
    batch, length, width = states.shape
    for_rows, for_states = frozen_tail.gradients(gradient, KeptTail(*kept[:5]), tail, dropout)
    far = project(states, weights.projections[3 * width :], weights.projections_bias[3 * width :], prefix)
    results = launch.backward(for_rows, rows, log_totals, near, far, pattern, words, shape, learning)
    if part_weight:
        prefix_part.add_gradients(for_rows, near, far, pattern, words, shape, part_weight, results)
    for_near, for_far, for_query = results
    count = batch * length
    result = for_states.view(-1, width)
    if learning == ALL_ROWS:
        result.addmm_(for_near[:count], weights.projections[: 3 * width])
        result.addmm_(for_far[:count], weights.projections[3 * width :])
    elif learning:
        near_keys, far_keys = (
            gradients[:count].unflatten(0, (batch, length))[:, :learning] for gradients in (for_near, for_far)
        )
        for_states[:, :learning] += near_keys[..., width:] @ weights.projections[width : 3 * width]
        for_states[:, :learning] += far_keys @ weights.projections[3 * width :]
    if learning:
        launch.project_rows(for_query, weights.query_global, None, pattern.tokens, pattern.facts, result)
    for_prefix = None
    if ctx.needs_input_grad[1]:
        for_prefix = (for_near[count:, width:] + for_far[count:]).view(prefix.shape)
    return (for_states if ctx.needs_input_grad[0] else None, for_prefix, *(None,) * 36)


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, tuple[Tensor, ...]]) -> None:
    states, prefix, *arguments = inputs
    ctx.save_for_backward(states, prefix, *output[1], *(value for value in arguments if isinstance(value, Tensor)))
    ctx.numbers = [None if isinstance(value, Tensor) else value for value in arguments]


def _with_numbers(tensors: list[Tensor], numbers: list[Any]) -> tuple:
    """The arguments again, tensors in the places where no number is."""
    remaining = iter(tensors)
    return tuple(next(remaining) if number is None else number for number in numbers)


_layer = function(_forward, _keep, _backward)

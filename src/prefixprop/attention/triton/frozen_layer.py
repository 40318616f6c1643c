"""A whole Longformer layer with frozen weights as one operation.

It saves nothing for gradients of weights, adds gradients of the residual stream where they are computed, and spares
the host the calls of a tree of modules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from prefixprop.attention.hooks import has_hooks
from prefixprop.attention.prefix import FusedPart
from prefixprop.attention.triton import frozen_ffn, launch_attention
from prefixprop.attention.triton.frozen_ffn import Dropout, Ffn, FfnWeights, KeptFfn, Sides, is_frozen
from prefixprop.attention.triton.launch_attention import ALL_ROWS, DropoutSeeds, Shape, project
from prefixprop.attention.triton.lora import Piece, SidePath, fit_together, flatten, unwrap
from prefixprop.attention.triton.pattern import DevicePattern
from prefixprop.attention.triton.prefix_part import Rows, add_gradients, add_part
from prefixprop.attention.triton.tiles import GLOBAL
from prefixprop.attention.triton.triton_kernel import function

QUERY_GLOBAL = 5  # the place of its LoRA: after the parts of `projections`


class AttentionWeights(NamedTuple):
    """`projections` are those of query, key, value, key_global and value_global one after the other."""

    projections: Tensor
    projections_bias: Tensor
    query_global: Tensor
    query_global_bias: Tensor


class Attention(NamedTuple):
    weights: AttentionWeights
    pieces: list[Piece]  # of LoRA, in the order of the weights


class Inputs(NamedTuple):
    """What the operation gets besides states and prefix."""

    pattern: DevicePattern
    seeds: DropoutSeeds
    shape: Shape
    weights: AttentionWeights
    ffn: FfnWeights
    dropout: Dropout
    side: SidePath | None  # of attention
    ffn_sides: Sides


def attention_of(layer: Any, dtype: torch.dtype) -> Attention | None:
    """None where weights are not frozen, or a part has hooks."""
    own = layer.attention.self
    wrapped = (own.query, own.key, own.value, own.key_global, own.value_global, own.query_global)
    found = [each for place, linear in enumerate(wrapped) if (each := unwrap(linear, place)) is not None]
    linears, pieces = [linear for linear, _ in found], [piece for _, pieces in found for piece in pieces]
    if has_hooks(own) or len(found) < len(wrapped) or not fit_together(pieces):
        return None
    if not all(is_frozen(linear, dtype) for linear in linears):
        return None
    projections = torch.cat([linear.weight for linear in linears[:5]])
    projections_bias = torch.cat([linear.bias for linear in linears[:5]])
    return Attention(AttentionWeights(projections, projections_bias, linears[5].weight, linears[5].bias), pieces)


def frozen_layer(
    layer: Any,
    states: Tensor,
    attention: Attention,
    ffn: Ffn,
    pattern: tuple,
    prefix: Tensor,
    part: FusedPart | None = None,
    grad_rows: int = ALL_ROWS,
) -> Tensor:
    """`pattern` is a flat DevicePattern, DropoutSeeds and Shape; `part` is for a prefix outside the softmax. Only the
    first `grad_rows` rows of `states`, which are global then, get a valid gradient; the rest must not be read."""
    plans, lora = flatten([attention.pieces, *ffn.pieces], states.shape[0] * states.shape[1])
    trained = None if part is None or part.trained is None else part.trained.contiguous()
    needs_grad = any(tensor is not None and tensor.requires_grad for tensor in (states, prefix, trained, *lora))
    keeps = torch.is_grad_enabled() and needs_grad
    dropout = Dropout.draw(layer, states)
    if attention.pieces or part is not None:  # their gradients come from all rows
        grad_rows = ALL_ROWS
    fixed = part if part is None else part._replace(trained=None)
    numbers = (layer.output.LayerNorm.eps, keeps, (fixed,), grad_rows)
    run = _layer if keeps else _forward
    arguments = (*pattern, *attention.weights, *ffn.weights, *dropout, *numbers, plans, *lora)
    return run(states.contiguous(), prefix, trained, *arguments)[0]


def _unpack(arguments: tuple, dtype: torch.dtype) -> Inputs:
    side, *ffn_sides = SidePath.read(arguments[36], arguments[37:], dtype)
    return Inputs(
        DevicePattern(*arguments[:5]),
        DropoutSeeds(*arguments[5:7]),
        Shape(*arguments[7:13]),
        AttentionWeights(*arguments[13:17]),
        FfnWeights(*arguments[17:27]),
        Dropout(*arguments[27:32]),
        side,
        Sides(*ffn_sides),
    )


def _part(arguments: tuple, trained: Tensor | None) -> FusedPart | None:
    (fixed,) = arguments[34]
    return None if fixed is None else fixed._replace(trained=trained)


def _forward(
    states: Tensor, prefix: Tensor, trained: Tensor | None, *arguments: Any
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The layer's output, and what backward needs."""
    given = _unpack(arguments, states.dtype)
    epsilon, keeps = arguments[32:34]
    part = _part(arguments, trained)
    pattern, seeds, shape, weights = given[:4]
    width = states.shape[-1]
    lowered = None if given.side is None else given.side.lora_down(states.flatten(0, 1))
    qkv = project(states, weights.projections[: 3 * width], weights.projections_bias[: 3 * width], prefix)
    _add_side(given.side, lowered, qkv, 0)
    launch_attention.project_rows(
        states, weights.query_global, weights.query_global_bias, pattern.tokens, pattern.facts, qkv
    )
    _add_side_of_global_queries(given, lowered, qkv)
    kv_global = _far(given, states, prefix, lowered)
    rows, lse = launch_attention.forward(qkv, kv_global, pattern, seeds, shape)
    summed = rows if part is None else add_part(rows, Rows(qkv, kv_global, pattern, seeds, shape), part)
    del kv_global  # backward computes it again
    output, kept = frozen_ffn.forward(summed, states, given.ffn, given.ffn_sides, given.dropout, epsilon, keeps)
    return output, (qkv, rows, lse, lowered, *kept)


def _far(given: Inputs, states: Tensor, prefix: Tensor, lowered: Tensor | None) -> Tensor:
    weights, width = given.weights, states.shape[-1]
    kv_global = project(states, weights.projections[3 * width :], weights.projections_bias[3 * width :], prefix)
    _add_side(given.side, lowered, kv_global, 3)
    return kv_global


def _add_side(side: SidePath | None, lowered: Tensor | None, projected: Tensor, first: int) -> None:
    """Add LoRA to the tokens' projections; the first one in the buffer has the place `first`."""
    if side is None or lowered is None:
        return
    parts = projected[: len(lowered)].split(side.up.shape[2], dim=1)
    for piece, place in enumerate(side.plan.places):
        if 0 <= place - first < len(parts):
            side.lora_up(lowered, piece, parts[place - first])


def _add_side_of_global_queries(given: Inputs, lowered: Tensor | None, qkv: Tensor) -> None:
    side, pattern = given.side, given.pattern
    if side is None or lowered is None:
        return
    for piece, place in enumerate(side.plan.places):
        if place == QUERY_GLOBAL:
            rows = side.low(lowered, piece).unflatten(0, pattern.kind.shape)
            up = (side.up[piece] * side.plan.scales[piece]).mT
            launch_attention.project_rows(rows, up, None, pattern.tokens, pattern.facts, qkv)


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    states, prefix, trained, qkv, rows, lse, lowered, *saved = ctx.saved_tensors
    arguments = _with_numbers(saved[8:], ctx.numbers)
    given = _unpack(arguments, states.dtype)
    pattern, seeds, shape, weights, ffn, dropout, side, ffn_sides = given
    epsilon, grad_rows = arguments[32], arguments[35]
    part = _part(arguments, trained)
    batch, length, width = states.shape
    kv_global = _far(given, states, prefix, lowered)
    summed = None
    if ffn_sides.attended is not None:
        summed = rows if part is None else add_part(rows, Rows(qkv, kv_global, pattern, seeds, shape), part)
    d_rows, d_states, of_ffn = frozen_ffn.gradients(
        gradient, summed, KeptFfn(*saved[:8]), ffn, ffn_sides, dropout, epsilon
    )
    del summed
    results = launch_attention.backward(d_rows, rows, lse, qkv, kv_global, pattern, seeds, shape, grad_rows)
    d_alpha = None
    if part is not None:
        d_alpha = add_gradients(d_rows, Rows(qkv, kv_global, pattern, seeds, shape), part, results)
    dqkv, dkv_global, dq_global = results
    count = batch * length
    result = d_states.view(-1, width)
    d_low, of_side = None, list[Tensor | None]()
    if side is not None:
        if QUERY_GLOBAL in side.plan.places:  # only global rows were written
            dq_global.masked_fill_(pattern.kind.ne(GLOBAL.value)[..., None], 0.0)
        parts = (
            *dqkv[:count].split(width, dim=1),
            *dkv_global[:count].split(width, dim=1),
            dq_global.view(-1, width),
        )
        d_low, of_side = side.gradients(lowered, states.flatten(0, 1), [parts[place] for place in side.plan.places])
    if not ctx.needs_input_grad[0]:
        pass
    elif grad_rows == ALL_ROWS:
        result.addmm_(dqkv[:count], weights.projections[: 3 * width])
        result.addmm_(dkv_global[:count], weights.projections[3 * width :])
        if side is not None and d_low is not None:
            side.add_back(d_low, result)
    elif grad_rows:
        dqkv_rows, dkv_rows = (
            gradients[:count].unflatten(0, (batch, length))[:, :grad_rows] for gradients in (dqkv, dkv_global)
        )
        d_states[:, :grad_rows] += dqkv_rows[..., width:] @ weights.projections[width : 3 * width]
        d_states[:, :grad_rows] += dkv_rows @ weights.projections[3 * width :]
    if grad_rows and ctx.needs_input_grad[0]:
        launch_attention.project_rows(dq_global, weights.query_global, None, pattern.tokens, pattern.facts, result)
    d_prefix = None
    if ctx.needs_input_grad[1]:
        d_prefix = (dqkv[count:, width:] + dkv_global[count:]).view(prefix.shape)
    found = (d_states if ctx.needs_input_grad[0] else None, d_prefix, d_alpha)
    return (*found, *(None,) * 37, *of_side, *of_ffn)


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, tuple[Tensor | None, ...]]) -> None:
    *leaves, arguments = *inputs[:3], inputs[3:]
    ctx.save_for_backward(*leaves, *output[1], *(value for value in arguments if isinstance(value, Tensor)))
    ctx.numbers = [None if isinstance(value, Tensor) else value for value in arguments]


def _with_numbers(tensors: list[Tensor], numbers: list[Any]) -> tuple:
    """The arguments again, with tensors where there is no number."""
    remaining = iter(tensors)
    return tuple(next(remaining) if number is None else number for number in numbers)


_layer = function(_forward, _keep, _backward)

"""What follows attention in a Longformer layer (dense, residual, norm, feed-forward) with frozen weights.

It is the second half of a layer in one piece (`frozen_layer`), and an operation of its own where attention is called
part by part: where its projections learn, or something is wrapped around them. LoRA is a side path in both (`lora`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention.hooks import is_watched
from prefixprop.attention.triton import residual_norm
from prefixprop.attention.triton.dropout import draw_words
from prefixprop.attention.triton.lora import (
    Piece,
    Plan,
    SidePath,
    add_side,
    fit_together,
    side_gradients,
    spell_out,
    unwrap,
)
from prefixprop.attention.triton.triton_kernel import function


class TailWeights(NamedTuple):
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

    @classmethod
    def draw(cls, layer: Any, states: Tensor) -> Dropout:
        rows, width = states.shape[0] * states.shape[1], states.shape[2]
        probability = layer.output.dropout.p if layer.output.dropout.training else 0.0
        return cls(probability, *draw_words((rows, width, rows, width), layer.output.LayerNorm.bias, probability))


class KeptTail(NamedTuple):
    """What backward needs of forward; the last three are what went down LoRA's side paths."""

    attended_sum: Tensor
    attended_moments: Tensor
    inner: Tensor
    output_sum: Tensor
    output_moments: Tensor
    attended_low: Tensor | None
    inner_low: Tensor | None
    outer_low: Tensor | None


class Sides(NamedTuple):
    """LoRA's paths beside the linear layers, if there are any."""

    attended: SidePath | None
    inner: SidePath | None
    outer: SidePath | None


class Tail(NamedTuple):
    weights: TailWeights
    pieces: list[list[Piece]]  # of LoRA, around each of the linear layers


def tail_of(layer: Any, dtype: torch.dtype) -> Tail | None:
    """None where weights are not frozen, or somebody waits for one of the parts to be called."""
    attention, feed_forward = layer.attention, layer.output
    unwrapped = [unwrap(part.dense) for part in (attention.output, layer.intermediate, feed_forward)]
    found = [each for each in unwrapped if each is not None]
    if len(found) < len(unwrapped) or not fit_together([piece for _, pieces in found for piece in pieces]):
        return None
    linears = [linear for linear, _ in found]
    norms = (attention.output.LayerNorm, feed_forward.LayerNorm)
    drops = (attention.output.dropout, feed_forward.dropout)
    activation = layer.intermediate.intermediate_act_fn
    parts = (*norms, *drops, attention, attention.output, layer.intermediate, feed_forward, activation)
    if any(is_watched(part) for part in parts):
        return None
    if len({(drop.p, drop.training, norm.eps) for drop, norm in zip(drops, norms, strict=True)}) > 1:
        return None
    if type(activation) is not GELUActivation or any(type(norm) is not nn.LayerNorm for norm in norms):
        return None
    if not all(is_frozen(part, dtype) for part in (*linears, *norms)):
        return None
    in_order = (linears[0], norms[0], linears[1], linears[2], norms[1])
    weights = TailWeights(*(tensor for part in in_order for tensor in (part.weight, part.bias)))
    return Tail(weights, [pieces for _, pieces in found])


def is_frozen(part: Any, dtype: torch.dtype) -> bool:
    return not part.weight.requires_grad and not part.bias.requires_grad and part.weight.dtype == dtype


def forward(
    rows: Tensor, states: Tensor, weights: TailWeights, sides: Sides, dropout: Dropout, epsilon: float, keeps: bool
) -> tuple[Tensor, KeptTail]:
    """The layer's output from the rows of its attention, and from the states that it was given."""
    update = F.linear(rows, weights.attended, weights.attended_bias)
    attended_low = add_side(sides.attended, rows, update)
    attended, attended_sum, attended_moments = residual_norm.normalise(
        update,
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
    inner_low = add_side(sides.inner, attended, inner)
    active = F.gelu(inner)
    update = F.linear(active, weights.outer, weights.outer_bias)
    outer_low = add_side(sides.outer, active, update)
    del active
    output, output_sum, output_moments = residual_norm.normalise(
        update,
        attended,
        weights.outer_scale,
        weights.outer_shift,
        dropout.outer_rows,
        dropout.outer_columns,
        epsilon,
        dropout.probability,
        keeps,
    )
    kept = (attended_sum, attended_moments, inner, output_sum, output_moments, attended_low, inner_low, outer_low)
    return output, KeptTail(*kept)


def gradients(
    gradient: Tensor,
    rows: Tensor | None,
    kept: KeptTail,
    weights: TailWeights,
    sides: Sides,
    dropout: Dropout,
    epsilon: float,
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Gradients of the rows and of the states, and of what `spell_out` made of LoRA.

    The rows themselves are asked for only if there is a path beside the first linear layer.
    """
    width = gradient.shape[-1]
    flat = (-1, width)
    # The residual's gradient takes up the other path's.
    for_attended, for_outer, _ = residual_norm.gradients(
        gradient.contiguous(),
        kept.output_sum,
        kept.output_moments,
        weights.outer_scale,
        dropout.outer_rows,
        dropout.outer_columns,
        False,
        dropout.probability,
    )
    for_attended_rows = for_attended.view(flat)
    for_outer = (for_outer if dropout.probability else for_attended).view(flat)
    inner = kept.inner.flatten(0, -2)
    for_inner = for_outer @ weights.outer
    of_outer: list[Tensor | None] = []
    if sides.outer is not None:
        of_outer = side_gradients(sides.outer, kept.outer_low, F.gelu(inner), for_outer, for_inner)
    torch.ops.aten.gelu_backward.grad_input(for_inner, inner, grad_input=for_inner)
    for_attended_rows.addmm_(for_inner, weights.inner)
    of_inner: list[Tensor | None] = []
    if sides.inner is not None:
        scale, shift = weights.attended_scale, weights.attended_shift
        attended = F.layer_norm(kept.attended_sum, (width,), scale, shift, epsilon).view(flat)
        of_inner = side_gradients(sides.inner, kept.inner_low, attended, for_inner, for_attended_rows)
        del attended
    del for_inner, for_outer
    for_states, for_update, _ = residual_norm.gradients(
        for_attended,
        kept.attended_sum,
        kept.attended_moments,
        weights.attended_scale,
        dropout.attended_rows,
        dropout.attended_columns,
        False,
        dropout.probability,
    )
    for_update = (for_update if dropout.probability else for_states).view(flat)
    for_rows = for_update @ weights.attended
    of_attended: list[Tensor | None] = []
    if rows is not None:
        of_attended = side_gradients(sides.attended, kept.attended_low, rows.flatten(0, -2), for_update, for_rows)
    return for_rows.view_as(gradient), for_states, [*of_attended, *of_inner, *of_outer]


def frozen_tail(layer: Any, rows: Tensor, states: Tensor, tail: Tail) -> Tensor:
    """The output of a layer whose attention was computed elsewhere."""
    plans, tensors = spell_out(tail.pieces, states.shape[0] * states.shape[1])
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (rows, states, *tensors))
    arguments = (*tail.weights, *Dropout.draw(layer, states), layer.output.LayerNorm.eps, keeps, plans, *tensors)
    run = _tail if keeps else _forward
    return run(rows.contiguous(), states.contiguous(), *arguments)[0]


def _unpack(arguments: Any, dtype: torch.dtype) -> tuple[TailWeights, Sides, Dropout]:
    plans: tuple[Plan, ...] = arguments[17]
    sides = Sides(*SidePath.read(plans, arguments[18:], dtype))
    return TailWeights(*arguments[:10]), sides, Dropout(*arguments[10:15])


def _forward(rows: Tensor, states: Tensor, *arguments: Any) -> tuple[Tensor, KeptTail]:
    return forward(rows, states, *_unpack(arguments, states.dtype), *arguments[15:17])


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, KeptTail]) -> None:
    rows, _, *arguments = inputs
    kept = output[1]
    ctx.save_for_backward(
        rows if kept.attended_low is not None else None, *kept, *arguments[:10], *arguments[11:15], *arguments[18:]
    )
    ctx.probability, ctx.numbers = arguments[10], arguments[15:18]


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    rows, *saved = ctx.saved_tensors
    kept, weights, words, lora = KeptTail(*saved[:8]), saved[8:18], saved[18:22], saved[22:]
    arguments = (*weights, ctx.probability, *words, *ctx.numbers, *lora)
    for_rows, for_states, of_lora = gradients(
        gradient, rows, kept, *_unpack(arguments, gradient.dtype), epsilon=ctx.numbers[0]
    )
    return (for_rows, for_states, *(None,) * 18, *of_lora)


_tail = function(_forward, _keep, _backward)

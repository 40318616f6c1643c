"""What follows attention in a Longformer layer (dense, residual, norm, feed-forward) with frozen weights.

It is the second half of a fused layer (`frozen_layer`), and an operation of its own where attention is computed
separately, because its projections are trained or wrapped. LoRA is a side path in both (`lora`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention.hooks import has_hooks
from prefixprop.attention.triton import residual_norm
from prefixprop.attention.triton.dropout import draw_dropout_seeds
from prefixprop.attention.triton.lora import (
    Piece,
    Plan,
    SidePath,
    add_side,
    fit_together,
    flatten,
    side_gradients,
    unwrap,
)
from prefixprop.attention.triton.triton_kernel import function


class FfnWeights(NamedTuple):
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
    """Probability after attention and feed-forward, and the seeds of its masks (see `dropout`)."""

    probability: float
    attended_rows: Tensor
    attended_columns: Tensor
    outer_rows: Tensor
    outer_columns: Tensor

    @classmethod
    def draw(cls, layer: Any, states: Tensor) -> Dropout:
        rows, width = states.shape[0] * states.shape[1], states.shape[2]
        probability = layer.output.dropout.p if layer.output.dropout.training else 0.0
        return cls(
            probability, *draw_dropout_seeds((rows, width, rows, width), layer.output.LayerNorm.bias, probability)
        )


class KeptFfn(NamedTuple):
    """What backward needs of forward; the last three are the low-rank products of LoRA."""

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


class Ffn(NamedTuple):
    weights: FfnWeights
    pieces: list[list[Piece]]  # of LoRA, around each of the linear layers


def ffn_of(layer: Any, dtype: torch.dtype) -> Ffn | None:
    """None where weights are not frozen, or a part has hooks."""
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
    if any(has_hooks(part) for part in parts):
        return None
    if len({(drop.p, drop.training, norm.eps) for drop, norm in zip(drops, norms, strict=True)}) > 1:
        return None
    if type(activation) is not GELUActivation or any(type(norm) is not nn.LayerNorm for norm in norms):
        return None
    if not all(is_frozen(part, dtype) for part in (*linears, *norms)):
        return None
    in_order = (linears[0], norms[0], linears[1], linears[2], norms[1])
    weights = FfnWeights(*(tensor for part in in_order for tensor in (part.weight, part.bias)))
    return Ffn(weights, [pieces for _, pieces in found])


def is_frozen(part: Any, dtype: torch.dtype) -> bool:
    return not part.weight.requires_grad and not part.bias.requires_grad and part.weight.dtype == dtype


def forward(
    rows: Tensor, states: Tensor, weights: FfnWeights, sides: Sides, dropout: Dropout, epsilon: float, keeps: bool
) -> tuple[Tensor, KeptFfn]:
    """The layer's output from the output of its attention and from its input states."""
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
    return output, KeptFfn(*kept)


def gradients(
    gradient: Tensor,
    rows: Tensor | None,
    kept: KeptFfn,
    weights: FfnWeights,
    sides: Sides,
    dropout: Dropout,
    epsilon: float,
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Gradients of the rows and of the states, and of LoRA's tensors, in the order of `flatten`.

    The rows are needed only if the first linear layer has LoRA.
    """
    width = gradient.shape[-1]
    flat = (-1, width)
    # The gradient of the other path is added to that of the residual.
    d_attended, d_outer, _ = residual_norm.gradients(
        gradient.contiguous(),
        kept.output_sum,
        kept.output_moments,
        weights.outer_scale,
        dropout.outer_rows,
        dropout.outer_columns,
        False,
        dropout.probability,
    )
    d_attended_rows = d_attended.view(flat)
    d_outer = (d_outer if dropout.probability else d_attended).view(flat)
    inner = kept.inner.flatten(0, -2)
    d_inner = d_outer @ weights.outer
    of_outer: list[Tensor | None] = []
    if sides.outer is not None:
        of_outer = side_gradients(sides.outer, kept.outer_low, F.gelu(inner), d_outer, d_inner)
    torch.ops.aten.gelu_backward.grad_input(d_inner, inner, grad_input=d_inner)
    d_attended_rows.addmm_(d_inner, weights.inner)
    of_inner: list[Tensor | None] = []
    if sides.inner is not None:
        scale, shift = weights.attended_scale, weights.attended_shift
        attended = F.layer_norm(kept.attended_sum, (width,), scale, shift, epsilon).view(flat)
        of_inner = side_gradients(sides.inner, kept.inner_low, attended, d_inner, d_attended_rows)
        del attended
    del d_inner, d_outer
    d_states, d_update, _ = residual_norm.gradients(
        d_attended,
        kept.attended_sum,
        kept.attended_moments,
        weights.attended_scale,
        dropout.attended_rows,
        dropout.attended_columns,
        False,
        dropout.probability,
    )
    d_update = (d_update if dropout.probability else d_states).view(flat)
    d_rows = d_update @ weights.attended
    of_attended: list[Tensor | None] = []
    if rows is not None:
        of_attended = side_gradients(sides.attended, kept.attended_low, rows.flatten(0, -2), d_update, d_rows)
    return d_rows.view_as(gradient), d_states, [*of_attended, *of_inner, *of_outer]


def frozen_ffn(layer: Any, rows: Tensor, states: Tensor, ffn: Ffn) -> Tensor:
    """The output of a layer whose attention was computed elsewhere."""
    plans, tensors = flatten(ffn.pieces, states.shape[0] * states.shape[1])
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (rows, states, *tensors))
    arguments = (*ffn.weights, *Dropout.draw(layer, states), layer.output.LayerNorm.eps, keeps, plans, *tensors)
    run = _frozen_ffn if keeps else _forward
    return run(rows.contiguous(), states.contiguous(), *arguments)[0]


def leave(layer: Any, rows: Tensor, states: Tensor) -> Tensor | None:
    """The same; None where weights are not frozen, or a part has hooks."""
    dtype = compute_type(states)
    ffn = ffn_of(layer, dtype)
    return None if ffn is None else frozen_ffn(layer, rows.to(dtype), states.to(dtype), ffn)


def compute_type(states: Tensor) -> torch.dtype:
    """The type that a projection would have, under autocast too."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def _unpack(arguments: Any, dtype: torch.dtype) -> tuple[FfnWeights, Sides, Dropout]:
    plans: tuple[Plan, ...] = arguments[17]
    sides = Sides(*SidePath.read(plans, arguments[18:], dtype))
    return FfnWeights(*arguments[:10]), sides, Dropout(*arguments[10:15])


def _forward(rows: Tensor, states: Tensor, *arguments: Any) -> tuple[Tensor, KeptFfn]:
    return forward(rows, states, *_unpack(arguments, states.dtype), *arguments[15:17])


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, KeptFfn]) -> None:
    rows, _, *arguments = inputs
    kept = output[1]
    ctx.save_for_backward(
        rows if kept.attended_low is not None else None, *kept, *arguments[:10], *arguments[11:15], *arguments[18:]
    )
    ctx.probability, ctx.numbers = arguments[10], arguments[15:18]


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    rows, *saved = ctx.saved_tensors
    kept, weights, seeds, lora = KeptFfn(*saved[:8]), saved[8:18], saved[18:22], saved[22:]
    arguments = (*weights, ctx.probability, *seeds, *ctx.numbers, *lora)
    d_rows, d_states, of_lora = gradients(
        gradient, rows, kept, *_unpack(arguments, gradient.dtype), epsilon=ctx.numbers[0]
    )
    return (d_rows, d_states, *(None,) * 18, *of_lora)


_frozen_ffn = function(_forward, _keep, _backward)

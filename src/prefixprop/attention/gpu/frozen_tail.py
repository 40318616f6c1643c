"""What follows attention in a Longformer layer (dense, residual, norm, feed-forward) with frozen weights.

It is the second half of a layer in one piece (`frozen_layer`), and an operation of its own where something is wrapped
around the projections, as LoRA is: then only attention is called part by part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention.gpu import residual_norm
from prefixprop.attention.gpu.dropout import draw_words
from prefixprop.attention.gpu.triton_kernel import function
from prefixprop.attention.watching import is_watched


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
    """What backward needs of forward."""

    attended_sum: Tensor
    attended_moments: Tensor
    inner: Tensor
    output_sum: Tensor
    output_moments: Tensor


def tail_weights_of(layer: Any, dtype: torch.dtype) -> TailWeights | None:
    """The weights, or None where they are not frozen, or somebody waits for one of the parts to be called."""
    attention, feed_forward = layer.attention, layer.output
    linears = (attention.output.dense, layer.intermediate.dense, feed_forward.dense)
    norms = (attention.output.LayerNorm, feed_forward.LayerNorm)
    drops = (attention.output.dropout, feed_forward.dropout)
    activation = layer.intermediate.intermediate_act_fn
    parts = (*linears, *norms, *drops, attention, attention.output, layer.intermediate, feed_forward, activation)
    if any(is_watched(part) for part in parts):
        return None
    if len({(drop.p, drop.training, norm.eps) for drop, norm in zip(drops, norms, strict=True)}) > 1:
        return None
    if type(activation) is not GELUActivation or any(type(norm) is not nn.LayerNorm for norm in norms):
        return None
    if not all(is_frozen(part, dtype) for part in (*linears, *norms)):
        return None
    if any(type(linear) is not nn.Linear for linear in linears):
        return None
    in_order = (linears[0], norms[0], linears[1], linears[2], norms[1])
    return TailWeights(*(tensor for part in in_order for tensor in (part.weight, part.bias)))


def is_frozen(part: Any, dtype: torch.dtype) -> bool:
    return not part.weight.requires_grad and not part.bias.requires_grad and part.weight.dtype == dtype


def forward(
    rows: Tensor, states: Tensor, weights: TailWeights, dropout: Dropout, epsilon: float, keeps: bool
) -> tuple[Tensor, KeptTail]:
    """The layer's output from the rows of its attention, and from the states that it was given."""
    attended, attended_sum, attended_moments = residual_norm.normalise(
        F.linear(rows, weights.attended, weights.attended_bias),
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
    return output, KeptTail(attended_sum, attended_moments, inner, output_sum, output_moments)


def gradients(gradient: Tensor, kept: KeptTail, weights: TailWeights, dropout: Dropout) -> tuple[Tensor, Tensor]:
    """Gradients of the rows and of the states."""
    flat = (-1, gradient.shape[-1])
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
    for_inner = (for_outer if dropout.probability else for_attended).view(flat) @ weights.outer
    torch.ops.aten.gelu_backward.grad_input(for_inner, kept.inner.view(for_inner.shape), grad_input=for_inner)
    for_attended.view(flat).addmm_(for_inner, weights.inner)
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
    for_rows = (for_update if dropout.probability else for_states).view(flat) @ weights.attended
    return for_rows.view_as(gradient), for_states


def frozen_tail(layer: Any, rows: Tensor, states: Tensor, weights: TailWeights) -> Tensor:
    """The output of a layer whose attention was computed elsewhere."""
    keeps = torch.is_grad_enabled() and (rows.requires_grad or states.requires_grad)
    arguments = (*weights, *Dropout.draw(layer, states), layer.output.LayerNorm.eps, keeps)
    run = _tail if keeps else _forward
    return run(rows.contiguous(), states.contiguous(), *arguments)[0]


def _unpack(arguments: Any) -> tuple[TailWeights, Dropout]:
    return TailWeights(*arguments[:10]), Dropout(*arguments[10:15])


def _forward(rows: Tensor, states: Tensor, *arguments: Any) -> tuple[Tensor, KeptTail]:
    return forward(rows, states, *_unpack(arguments), *arguments[15:])


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, KeptTail]) -> None:
    _, _, *arguments = inputs
    weights, dropout = _unpack(arguments)
    ctx.save_for_backward(*output[1], *weights, *dropout[1:])
    ctx.probability = dropout.probability


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    kept, weights, words = ctx.saved_tensors[:5], ctx.saved_tensors[5:15], ctx.saved_tensors[15:]
    found = gradients(gradient, KeptTail(*kept), TailWeights(*weights), Dropout(ctx.probability, *words))
    return (*found, *(None,) * 17)


_tail = function(_forward, _keep, _backward)

"""A ModernBERT layer with frozen weights: two operations, one before its attention (enter) and one after (leave).

They save nothing for gradients of weights, recompute inner activations, and add the gradient of the residual stream
to that of a norm where it is computed. LoRA is a side path of both (`lora`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention.hooks import has_hooks
from prefixprop.attention.triton import residual_norm
from prefixprop.attention.triton.dropout import draw_dropout_seeds
from prefixprop.attention.triton.frozen_ffn import compute_type
from prefixprop.attention.triton.geglu import geglu_backward, geglu_forward
from prefixprop.attention.triton.lora import (
    Piece,
    SidePath,
    add_side,
    fit_together,
    flatten,
    side_gradients,
    unwrap,
)
from prefixprop.attention.triton.triton_kernel import function


class Entry(NamedTuple):
    """Before attention: LayerNorm, which the first layer lacks, and the projections."""

    scale: Tensor | None
    projections: Tensor
    epsilon: float
    pieces: list[Piece]  # of LoRA


class Ffn(NamedTuple):
    """After attention: the weights of its output, of the norm, and of the feed-forward part."""

    attended: Tensor
    scale: Tensor
    inner: Tensor
    outer: Tensor
    epsilon: float
    dropout: float  # of attention's output
    pieces: list[list[Piece]]  # of LoRA, around each of the three linear layers


def rotary_layer(layer: Any, states: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor | None:
    """The output of a ModernBertEncoderLayer with frozen weights; None for other layers.

    `attend` computes its attention from queries, keys and values.
    """
    if has_hooks(layer.attn):
        return None
    dtype = compute_type(states)
    ffn = ffn_of(layer, dtype)
    if ffn is None:
        return None
    states = states.to(dtype)  # autocast has float32 in front of the first layer
    entry = entry_of(layer, dtype)
    if entry is None:
        projected = layer.attn.Wqkv(layer.attn_norm(states))
    else:
        projected, states = enter(states, entry)
    return leave(attend(projected).to(states.dtype), states, ffn)


def entry_of(layer: Any, dtype: torch.dtype) -> Entry | None:
    """None where weights are not frozen or have a bias, or a part has hooks."""
    norm, unwrapped = layer.attn_norm, unwrap(layer.attn.Wqkv)
    if unwrapped is None or not fit_together(unwrapped[1]) or has_hooks(norm):
        return None
    linear, pieces = unwrapped
    has_norm = type(norm) is nn.LayerNorm
    if not (has_norm or type(norm) is nn.Identity) or not _is_frozen(linear, dtype):
        return None
    if has_norm and not _is_frozen(norm, dtype):
        return None
    return Entry(norm.weight if has_norm else None, linear.weight, norm.eps if has_norm else 0.0, pieces)


def ffn_of(layer: Any, dtype: torch.dtype) -> Ffn | None:
    """None where weights are not frozen or have a bias, or a part has hooks."""
    norm, mlp, drop = layer.mlp_norm, layer.mlp, layer.attn.out_drop
    found = [both for linear in (layer.attn.Wo, mlp.Wi, mlp.Wo) if (both := unwrap(linear)) is not None]
    if len(found) < 3 or not fit_together([piece for _, pieces in found for piece in pieces]):
        return None
    if any(map(has_hooks, (norm, mlp, mlp.act, mlp.drop, drop))) or (mlp.drop.training and mlp.drop.p):
        return None
    if type(mlp.act) is not GELUActivation or type(norm) is not nn.LayerNorm:
        return None
    linears = [linear for linear, _ in found]
    if not all(_is_frozen(part, dtype) for part in (*linears, norm)):
        return None
    attended, inner, outer = (linear.weight for linear in linears)
    dropout = float(drop.p) if isinstance(drop, nn.Dropout) and drop.training else 0.0
    return Ffn(attended, norm.weight, inner, outer, norm.eps, dropout, [pieces for _, pieces in found])


def _is_frozen(part: Any, dtype: torch.dtype) -> bool:
    return not part.weight.requires_grad and part.bias is None and part.weight.dtype == dtype


def enter(states: Tensor, entry: Entry) -> tuple[Tensor, Tensor]:
    """Queries, keys and values of all rows, and the states again, as the residual."""
    plans, lora = flatten([entry.pieces], states.shape[0] * states.shape[1])
    run: Any = _enter if _learns(states, *lora) else _enter_forward
    return run(states.contiguous(), *entry[:3], plans, *lora)[:2]


def _learns(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _enter_forward(
    states: Tensor, scale: Tensor | None, projections: Tensor, epsilon: float, plans: tuple, *lora: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
    """Projections and states, and what backward needs."""
    normed, mean, inverse = states.flatten(0, -2), None, None
    if scale is not None:
        normed, mean, inverse = torch.native_layer_norm(normed, scale.shape, scale, None, epsilon)
    projected = normed @ projections.t()
    (side,) = SidePath.read(plans, lora, states.dtype)
    lowered = add_side(side, normed, projected)
    return projected.unflatten(0, states.shape[:-1]), states, (mean, inverse, lowered)


def _keep_entry(ctx: Any, inputs: tuple, output: tuple) -> None:
    states, scale, projections, ctx.epsilon, ctx.plans, *lora = inputs
    ctx.save_for_backward(states if scale is not None or lora else None, scale, projections, *output[2], *lora)


def _enter_backward(ctx: Any, gradient: Tensor, d_residual: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    states, scale, projections, mean, inverse, lowered, *lora = ctx.saved_tensors
    gradient = gradient.contiguous().flatten(0, -2)
    d_normed = gradient @ projections if ctx.needs_input_grad[0] else None
    (side,) = SidePath.read(ctx.plans, lora, projections.dtype)
    of_side = list[Tensor | None]()
    if side is not None:
        normed = states if scale is None else _norm(states, scale, ctx.epsilon)
        of_side = side_gradients(side, lowered, normed.flatten(0, -2), gradient, d_normed)
    d_states = None
    if d_normed is not None and scale is None:
        d_states = d_normed.view_as(d_residual).add_(d_residual)
    elif d_normed is not None:
        moments = torch.cat([mean, inverse], dim=1).float()
        d_states = residual_norm.gradients(
            d_normed.view_as(states), states, moments, scale, scale, scale, False, 0.0, d_residual.contiguous()
        )[0]
    return (d_states, *(None,) * 4, *of_side)


def leave_layer(layer: Any, rows: Tensor, states: Tensor) -> Tensor | None:
    """The same for rows whose attention was computed elsewhere; None for layers that are not frozen."""
    dtype = compute_type(states)
    ffn = ffn_of(layer, dtype)
    return None if ffn is None else leave(rows.to(dtype), states.to(dtype), ffn)


def leave(rows: Tensor, states: Tensor, ffn: Ffn) -> Tensor:
    """The layer's output from the output of its attention and from its input states."""
    count, width = states.shape[0] * states.shape[1], states.shape[2]
    plans, lora = flatten(ffn.pieces, count)
    keeps = _learns(rows, states, *lora)
    seeds = draw_dropout_seeds((count, width), ffn.scale, ffn.dropout)
    run: Any = _leave if keeps else _leave_forward
    return run(rows.contiguous(), states.contiguous(), *ffn[:4], *seeds, *ffn[4:6], keeps, plans, *lora)[0]


def _leave_forward(
    rows: Tensor, states: Tensor, attended: Tensor, scale: Tensor, inner: Tensor, outer: Tensor,
    row_seeds: Tensor, column_seeds: Tensor, epsilon: float, dropout: float, keeps: bool, plans: tuple, *lora: Tensor,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:  # fmt: skip
    """The layer's output, and what backward needs."""
    sides = SidePath.read(plans, lora, states.dtype)
    update = F.linear(rows, attended)
    attended_low = add_side(sides[0], rows, update)
    normed, total, moments = residual_norm.normalise(
        update, states, scale, None, row_seeds, column_seeds, epsilon, dropout, True
    )
    del update
    both = F.linear(normed, inner)
    add_side(sides[1], normed, both)
    active, flat = geglu_forward(both).flatten(0, -2), total.flatten(0, -2)
    if keeps:
        output = torch.empty_like(states)  # not a view: a prefix may be added in place
        torch.addmm(flat, active, outer.t(), out=output.view_as(flat))
    else:
        output = total
        flat.addmm_(active, outer.t())
    outer_low = add_side(sides[2], active, output)
    return output, (total, moments, attended_low, outer_low)


def _keep_ffn(ctx: Any, inputs: tuple, output: tuple) -> None:
    rows, _, *tensors = inputs[:8]
    ctx.epsilon, ctx.dropout, _, ctx.plans = inputs[8:12]
    has_side = output[1][2] is not None
    ctx.save_for_backward(rows if has_side else None, *output[1], *tensors, *inputs[12:])


def _leave_backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    rows, total, moments, attended_low, outer_low, attended, scale, inner, outer, *rest = ctx.saved_tensors
    row_seeds, column_seeds, *lora = rest
    sides = SidePath.read(ctx.plans, lora, total.dtype)
    gradient, flat = gradient.contiguous(), total.flatten(0, -2)
    normed = _norm(flat, scale, ctx.epsilon)
    both = normed @ inner.t()
    inner_low = add_side(sides[1], normed, both)
    d_output = gradient.view_as(flat)
    d_active = d_output @ outer
    of_outer = list[Tensor | None]()
    if sides[2] is not None:
        of_outer = side_gradients(sides[2], outer_low, geglu_forward(both), d_output, d_active)
    geglu_backward(both, d_active, both)  # replaced by its own gradient, as it is used nowhere else
    d_normed = both @ inner
    of_inner = side_gradients(sides[1], inner_low, normed, both, d_normed)
    del normed, both, d_active
    d_states, d_update = residual_norm.gradients(
        d_normed.view_as(total), total, moments, scale, row_seeds, column_seeds, False, ctx.dropout, gradient
    )[:2]
    d_update = (d_update if ctx.dropout else d_states).view_as(flat)
    d_rows = d_update @ attended
    of_attended = list[Tensor | None]()
    if rows is not None:
        of_attended = side_gradients(sides[0], attended_low, rows.flatten(0, -2), d_update, d_rows)
    return (d_rows.view_as(total), d_states, *(None,) * 10, *of_attended, *of_inner, *of_outer)


def _norm(rows: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    return torch.native_layer_norm(rows, scale.shape, scale, None, epsilon)[0]  # not affected by autocast


_enter = function(_enter_forward, _keep_entry, _enter_backward)
_leave = function(_leave_forward, _keep_ffn, _leave_backward)

"""Longformer's block on the Triton kernels: how rows enter and leave it, and whether a layer can be computed so.

Enter: q, k, v of all rows, q_global of the global rows in place of their q, and k_global, v_global of all rows.
Leave: output, residual, LayerNorm; feed-forward with GELU, residual, LayerNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention.patch import has_hooks
from prefixprop.attention.pattern import ALL_ROWS, AttentionPattern
from prefixprop.attention.prefix import LayerPrefix, PrefixedKeys, add_prefix_part, as_rows
from prefixprop.attention.sliding_window import is_plain, split_heads
from prefixprop.attention.sliding_window import longformer_self_attention as with_weights
from prefixprop.attention.triton.block import Attention, Block, compute_type
from prefixprop.attention.triton.dropout import draw_dropout_seeds
from prefixprop.attention.triton.launch_attention import (
    AttentionGradients,
    DevicePattern,
    Setting,
    project,
    project_rows,
)
from prefixprop.attention.triton.lora import Piece, SidePath, add_side, fit_together, side_gradients, unwrap
from prefixprop.attention.triton.operation import Gradients, run
from prefixprop.attention.triton.plan import BlockPlan, Join, Plans, plan_for
from prefixprop.attention.triton.prefix_part import can_fuse
from prefixprop.attention.triton.residual_norm import ResidualNorm, residual_norm
from prefixprop.attention.triton.tiles import GLOBAL

PROJECTIONS = ("query", "key", "value", "key_global", "value_global")
QUERY_GLOBAL = 5  # the place of its LoRA: after the projections


# --- enter ---------------------------------------------------------------------------------------------------------


class EnterWeights(NamedTuple):
    """`projections` are those of query, key, value, key_global and value_global one after the other."""

    projections: Tensor
    bias: Tensor
    query_global: Tensor
    query_global_bias: Tensor

    def without_global(self) -> EnterWeights:
        """For a pass in which no token is global."""
        width = self.projections.shape[1]
        return self._replace(projections=self.projections[: 3 * width], bias=self.bias[: 3 * width])


class EnterPlan(NamedTuple):
    weights: EnterWeights
    pieces: list[Piece]  # of LoRA, in the order of the weights


def enter_of(layer: Any, dtype: torch.dtype, join: Join) -> EnterPlan | None:
    """None where weights are not frozen, or a part has hooks."""
    own = layer.attention.self
    wrapped = [getattr(own, name) for name in (*PROJECTIONS, "query_global")]
    found = [each for place, linear in enumerate(wrapped) if (each := unwrap(linear, place)) is not None]
    linears, pieces = [linear for linear, _ in found], [piece for _, pieces in found for piece in pieces]
    if has_hooks(own) or len(found) < len(wrapped) or not fit_together(pieces):
        return None
    if not all(_is_frozen(linear, dtype) for linear in linears):
        return None
    projections = join("projections", [linear.weight for linear in linears[:5]])
    bias = join("bias", [linear.bias for linear in linears[:5]])
    return EnterPlan(EnterWeights(projections, bias, linears[5].weight, linears[5].bias), pieces)


class KeptEnter(NamedTuple):
    low: Tensor | None  # the result of LoRA's `lora_down`


@dataclass(frozen=True, slots=True)
class Enter:
    weights: EnterWeights
    pattern: DevicePattern
    side: SidePath | None = None
    trains: bool = False  # the weights get the gradients that they ask for

    def enter(self, states: Tensor, prefix: Tensor) -> tuple[Tensor, KeptEnter]:
        weights, width = self.weights, states.shape[-1]
        low = None if self.side is None else self.side.lora_down(states.flatten(0, 1))
        qkv = project(states, weights.projections[: 3 * width], weights.bias[: 3 * width], prefix)
        self._add_side(low, qkv, 0)
        if self.pattern.has_tokens:
            project_rows(states, weights.query_global, weights.query_global_bias, self.pattern, qkv)
            self._add_side_of_global_queries(low, qkv)
        return qkv, KeptEnter(low)

    def kv_global(self, states: Tensor, prefix: Tensor, kept: KeptEnter) -> Tensor:
        """[rows, 2 width], or [rows, 0] where no token is global."""
        weights, width = self.weights, states.shape[-1]
        kv_global = project(states, weights.projections[3 * width :], weights.bias[3 * width :], prefix)
        self._add_side(kept.low, kv_global, 3)
        return kv_global

    def _add_side(self, low: Tensor | None, projected: Tensor, first: int) -> None:
        """Add LoRA to the tokens' projections; the first one in the buffer has the place `first`."""
        if self.side is None or low is None:
            return
        parts = projected[: len(low)].split(self.side.up.shape[2], dim=1)
        for piece, place in enumerate(self.side.places):
            if 0 <= place - first < len(parts):
                self.side.lora_up(low, piece, parts[place - first])

    def _add_side_of_global_queries(self, low: Tensor | None, qkv: Tensor) -> None:
        if self.side is None or low is None:
            return
        for piece, place in enumerate(self.side.places):
            if place == QUERY_GLOBAL:
                rows = self.side.low(low, piece).unflatten(0, self.pattern.kind.shape)
                up = (self.side.up[piece] * self.side.scales[piece]).mT
                project_rows(rows, up, None, self.pattern, qkv)

    def enter_backward(
        self,
        found: AttentionGradients,
        d_states: Tensor | None,
        states: Tensor,
        prefix: Tensor,
        kept: KeptEnter,
        grad_rows: int,
        needs: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, list[Tensor | None]]:
        """Gradients of the states, of the prefix, and of what else learns; `d_states` is that of the residual."""
        batch, length, width = states.shape
        count, flat = batch * length, states.flatten(0, 1)
        dq_global, dqkv, dkv_global = found.dq_global, found.dqkv[:count], found.dkv_global[:count]
        if self.pattern.has_tokens and self._queries_learn():  # only global rows were written
            dq_global.masked_fill_(self.pattern.kind.ne(GLOBAL.value)[..., None], 0.0)
        d_low, of_leaves = None, list[Tensor | None]()
        if self.side is not None and kept.low is not None:
            parts = (*dqkv.split(width, dim=1), *dkv_global.split(width, dim=1), dq_global.view(-1, width))
            d_low, of_side = self.side.gradients(kept.low, flat, [parts[place] for place in self.side.places])
            of_leaves += of_side
        if self.trains:
            of_leaves += self._of_weights(dqkv, dkv_global, dq_global.view(-1, width), flat)
        needs_states, needs_prefix = needs
        if needs_states:
            d_states = self._of_states(dqkv, dkv_global, dq_global, d_states, states, grad_rows, d_low)
        d_prefix = None
        if needs_prefix:
            d_prefix, of_global = found.dqkv[count:, width:], found.dkv_global[count:]
            d_prefix = (d_prefix + of_global if of_global.shape[1] else d_prefix.contiguous()).view(prefix.shape)
        return d_states if needs_states else None, d_prefix, of_leaves

    def _queries_learn(self) -> bool:
        """Whether something makes the queries of global rows that gets a gradient."""
        if self.trains:
            return self.weights.query_global.requires_grad or self.weights.query_global_bias.requires_grad
        return self.side is not None and QUERY_GLOBAL in self.side.places

    def _of_states(
        self,
        dqkv: Tensor,
        dkv_global: Tensor,
        dq_global: Tensor,
        d_states: Tensor | None,
        states: Tensor,
        grad_rows: int,
        d_low: Tensor | None,
    ) -> Tensor:
        batch, length, width = states.shape
        of_qkv, of_kv_global = self.weights.projections.split([3 * width, len(self.weights.projections) - 3 * width])
        if grad_rows == ALL_ROWS:
            if d_states is None:
                d_states = (dqkv @ of_qkv).view_as(states)
            else:
                d_states.view(-1, width).addmm_(dqkv, of_qkv)
            d_states.view(-1, width).addmm_(dkv_global, of_kv_global)
            if self.side is not None and d_low is not None:
                self.side.add_back(d_low, d_states.view(-1, width))
        elif grad_rows:
            assert d_states is not None
            front = d_states[:, :grad_rows]
            front += dqkv.unflatten(0, (batch, length))[:, :grad_rows, width:] @ of_qkv[width:]
            front += dkv_global.unflatten(0, (batch, length))[:, :grad_rows] @ of_kv_global
        assert d_states is not None
        if grad_rows and self.pattern.has_tokens:
            result = d_states.view(-1, width)
            project_rows(dq_global, self.weights.query_global, None, self.pattern, result)
        return d_states

    def _of_weights(self, dqkv: Tensor, dkv_global: Tensor, dq_global: Tensor, states: Tensor) -> list[Tensor | None]:
        has_queries = self.pattern.has_tokens and self._queries_learn()
        return [
            torch.cat([dqkv.t() @ states, dkv_global.t() @ states])
            if self.weights.projections.requires_grad
            else None,
            torch.cat([dqkv.sum(dim=0), dkv_global.sum(dim=0)]) if self.weights.bias.requires_grad else None,
            dq_global.t() @ states if has_queries else None,
            dq_global.sum(dim=0) if has_queries else None,
        ]


# --- leave ---------------------------------------------------------------------------------------------------------


class LeaveWeights(NamedTuple):
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


class LeavePlan(NamedTuple):
    weights: LeaveWeights
    epsilon: float
    dropout: float  # after attention, and after the feed-forward
    pieces: list[list[Piece]]  # of LoRA, around each of the three linear layers


def leave_of(layer: Any, dtype: torch.dtype) -> LeavePlan | None:
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
    if not all(_is_frozen(part, dtype) for part in (*linears, *norms)):
        return None
    in_order = (linears[0], norms[0], linears[1], linears[2], norms[1])
    weights = LeaveWeights(*(tensor for part in in_order for tensor in (part.weight, part.bias)))
    dropout = drops[0].p if drops[0].training else 0.0
    return LeavePlan(weights, norms[0].eps, dropout, [pieces for _, pieces in found])


def _is_frozen(part: Any, dtype: torch.dtype) -> bool:
    return not part.weight.requires_grad and not part.bias.requires_grad and part.weight.dtype == dtype


class KeptLeave(NamedTuple):
    """What backward needs of forward; of attention's rows and low-rank products only what LoRA asks for."""

    rows: Tensor | None
    attended_sum: Tensor
    attended_moments: Tensor
    inner: Tensor
    output_sum: Tensor
    output_moments: Tensor
    attended_low: Tensor | None
    inner_low: Tensor | None
    outer_low: Tensor | None


@dataclass(frozen=True, slots=True)
class LeaveLayer:
    plan: LeavePlan
    seeds: list[Tensor]  # of dropout: rows and columns after attention, then after the feed-forward
    attended_side: SidePath | None
    inner_side: SidePath | None
    outer_side: SidePath | None

    @property
    def reads_rows(self) -> bool:
        """Whether backward needs attention's rows."""
        return self.attended_side is not None

    def _norms(self) -> tuple[ResidualNorm, ResidualNorm]:
        weights, (_, epsilon, dropout, _) = self.plan.weights, self.plan
        return (
            ResidualNorm(weights.attended_scale, weights.attended_shift, epsilon, dropout, *self.seeds[:2]),
            ResidualNorm(weights.outer_scale, weights.outer_shift, epsilon, dropout, *self.seeds[2:]),
        )

    def forward(self, rows: Tensor, states: Tensor, *lora: Tensor, keeps: bool) -> tuple[Tensor, tuple[KeptLeave]]:
        weights, (attended_norm, outer_norm) = self.plan.weights, self._norms()
        update = F.linear(rows, weights.attended, weights.attended_bias)
        attended_low = add_side(self.attended_side, rows, update)
        attended, attended_sum, attended_moments = attended_norm.normalise(update, states, keeps)
        inner = F.linear(attended, weights.inner, weights.inner_bias)
        inner_low = add_side(self.inner_side, attended, inner)
        active = F.gelu(inner)
        update = F.linear(active, weights.outer, weights.outer_bias)
        outer_low = add_side(self.outer_side, active, update)
        del active
        output, output_sum, output_moments = outer_norm.normalise(update, attended, keeps)
        own = rows if self.reads_rows else None
        lows = (attended_low, inner_low, outer_low)
        return output, (KeptLeave(own, attended_sum, attended_moments, inner, output_sum, output_moments, *lows),)

    def backward(self, all_kept: tuple[KeptLeave], needs: Sequence[bool], gradient: Tensor) -> Gradients:
        """Gradients of the rows and of the states, and of LoRA's matrices."""
        (kept,) = all_kept
        weights, (attended_norm, outer_norm) = self.plan.weights, self._norms()
        flat = (-1, gradient.shape[-1])
        # The gradient of the other path is added to that of the residual.
        d_attended, d_outer, _ = outer_norm.gradients(gradient, kept.output_sum, kept.output_moments)
        d_attended_rows, d_outer = d_attended.view(flat), d_outer.view(flat)
        inner = kept.inner.flatten(0, -2)
        d_inner = d_outer @ weights.outer
        of_outer, of_inner = list[Tensor](), list[Tensor]()
        if self.outer_side is not None:
            of_outer = side_gradients(self.outer_side, kept.outer_low, F.gelu(inner), d_outer, d_inner)
        torch.ops.aten.gelu_backward.grad_input(d_inner, inner, grad_input=d_inner)
        d_attended_rows.addmm_(d_inner, weights.inner)
        if self.inner_side is not None:
            scale, shift = weights.attended_scale, weights.attended_shift
            attended = F.layer_norm(kept.attended_sum, flat[1:], scale, shift, self.plan.epsilon).view(flat)
            of_inner = side_gradients(self.inner_side, kept.inner_low, attended, d_inner, d_attended_rows)
            del attended
        del d_inner, d_outer
        d_states, d_update, _ = attended_norm.gradients(d_attended, kept.attended_sum, kept.attended_moments)
        d_update = d_update.view(flat)
        d_rows = d_update @ weights.attended
        of_attended = list[Tensor]()
        if kept.rows is not None:
            rows = kept.rows.flatten(0, -2)
            of_attended = side_gradients(self.attended_side, kept.attended_low, rows, d_update, d_rows)
        return d_rows.view_as(gradient), d_states, *of_attended, *of_inner, *of_outer


# --- layers --------------------------------------------------------------------------------------------------------


def plan_of(layer: Any, dtype: torch.dtype, join: Join) -> BlockPlan:
    leave = leave_of(layer, dtype)
    return BlockPlan(None if leave is None else enter_of(layer, dtype, join), leave)


def longformer_layer(
    layer: Any, plans: Plans, hidden_states: Tensor, pattern: AttentionPattern, prefix: LayerPrefix, grad_rows: int
) -> Tensor | None:
    """The output of a layer whose weights are all frozen, or all but those of attention; None for other layers.

    Only the first `grad_rows` rows of the states, which are global then, get a valid gradient; the rest must not be
    read.
    """
    dtype = compute_type(hidden_states)
    enter, leave = plan_for(plans, layer, dtype, plan_of)
    if leave is None:
        return None
    states = hidden_states.to(dtype).contiguous()  # autocast has float32 in front of the first layer
    own = layer.attention.self
    if enter is None or not can_fuse(prefix, pattern, own.head_dim, states):
        (rows,) = own(states)
        leaving, lora = _leaving(leave, states)
        return run(leaving, rows.to(dtype).contiguous(), states, *lora)
    setting = _setting(own, pattern, prefix.key_values)
    side, of_enter = SidePath.open(enter.pieces, states.shape[0] * states.shape[1], dtype)
    leaving, of_leave = _leaving(leave, states)
    part = prefix.fused
    if enter.pieces or part is not None:  # their gradients come from all rows
        grad_rows = ALL_ROWS
    attention = Attention(setting, part, grad_rows=grad_rows)
    is_whole = setting.pattern.has_tokens or side is not None
    weights = enter.weights if is_whole else enter.weights.without_global()
    made = Block(Enter(weights, setting.pattern, side), attention, leaving)
    return run(made, states, as_rows(prefix.key_values, states), attention.alpha, *of_enter, *of_leave)


def _leaving(plan: LeavePlan, states: Tensor) -> tuple[LeaveLayer, list[Tensor]]:
    """For one call, and LoRA's matrices."""
    rows, width = states.shape[0] * states.shape[1], states.shape[2]
    opened = [SidePath.open(pieces, rows, states.dtype) for pieces in plan.pieces]
    seeds = draw_dropout_seeds((rows, width, rows, width), plan.weights.outer_shift, plan.dropout)
    return LeaveLayer(plan, seeds, *(side for side, _ in opened)), [each for _, own in opened for each in own]


def longformer_self_attention(
    module: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: Callable[..., Tensor] | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, ...]:
    """As the function of this name in `sliding_window`, which computes the weights if they are asked for."""
    if output_attentions:
        return with_weights(module, hidden_states, pattern, prefix, prefix_part, output_attentions)
    linears = [getattr(module, name) for name in PROJECTIONS]
    in_softmax = prefix if prefix_part is None else None
    if prefix_part is None and all(is_plain(linear) for linear in (*linears, module.query_global)):
        dtype = compute_type(hidden_states)
        states, setting = hidden_states.to(dtype).contiguous(), _setting(module, pattern, in_softmax)
        used = linears if setting.pattern.has_tokens else linears[:3]
        weights = EnterWeights(
            torch.cat([linear.weight for linear in used]).to(dtype),
            torch.cat([linear.bias for linear in used]).to(dtype),
            module.query_global.weight.to(dtype),
            module.query_global.bias.to(dtype),
        )
        made = Block(Enter(weights, setting.pattern, trains=True), Attention(setting))
        return (run(made, states, as_rows(in_softmax, states), None, *weights),)

    query, key, value, k_global, v_global = (linear(hidden_states) for linear in linears)
    query = torch.where(pattern.is_global[..., None], module.query_global(hidden_states), query)
    front = as_rows(in_softmax, query).flatten(0, 1)
    no_queries = F.pad(front, (front.shape[1] // 2, 0))
    qkv = torch.cat([torch.cat([rows.flatten(0, 1) for rows in (query, key, value)], dim=1), no_queries])
    kv_global = torch.cat([torch.cat([rows.flatten(0, 1) for rows in (k_global, v_global)], dim=1), front])
    setting = _setting(module, pattern, in_softmax)
    output = run(Attention(setting), qkv, kv_global, None, None)
    if prefix_part is not None:
        by_head = [split_heads(rows, module.num_heads) for rows in (query, key, value, k_global, v_global)]
        output = add_prefix_part(output, prefix_part, by_head, prefix, pattern, setting.shape.dropout)
    return (output,)


def residual_output(
    original: Callable[..., Tensor], module: Any, hidden_states: Tensor, input_tensor: Tensor
) -> Tensor:
    """The output of a LongformerSelfOutput or LongformerOutput, with dropout, residual and norm in one kernel."""
    norm, dropout = module.LayerNorm, module.dropout
    untouched = type(norm) is nn.LayerNorm and type(dropout) is nn.Dropout
    if not untouched or has_hooks(norm) or has_hooks(dropout):
        return original(hidden_states, input_tensor)
    probability = dropout.p if dropout.training else 0.0
    return residual_norm(module.dense(hidden_states), input_tensor, norm, probability)


def _setting(module: Any, pattern: AttentionPattern, prefix: PrefixedKeys | None) -> Setting:
    shape = module.num_heads, module.head_dim, module.one_sided_attn_window_size
    prefix_keys = 0 if prefix is None else prefix.keys.shape[2]
    return Setting.of(pattern, *shape, prefix_keys, module.dropout if module.training else 0.0)

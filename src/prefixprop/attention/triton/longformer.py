"""Longformer's block on the Triton kernels: how rows enter and leave it, and whether a layer can be fused.

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
from prefixprop.attention.triton.block import (
    Attention,
    Block,
    BlockInputs,
    BlockPlan,
    Join,
    Leave,
    LeavePlan,
    Linear,
    Plans,
    compute_type,
    plan_for,
)
from prefixprop.attention.triton.launch_attention import (
    AttentionGradients,
    DevicePattern,
    Setting,
    project,
    project_rows,
)
from prefixprop.attention.triton.lora import Piece, SidePath, fit_together, unwrap
from prefixprop.attention.triton.prefix_part import can_fuse
from prefixprop.attention.triton.residual_norm import residual_norm
from prefixprop.attention.triton.shared import GLOBAL, run

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
        inputs: BlockInputs,
        kept: KeptEnter,
        grad_rows: int,
        needs: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, list[Tensor | None]]:
        """Gradients of the states, of the prefix, and of what else learns; `d_states` is that of the residual."""
        states, (needs_states, needs_prefix) = inputs.states, needs
        count, width = states.shape[0] * states.shape[1], states.shape[2]
        dqkv, dkv_global, dq_global = found.dqkv[:count], found.dkv_global[:count], found.dq_global
        if self.pattern.has_tokens and self._queries_learn():  # only global rows were written
            dq_global.masked_fill_(self.pattern.kind.ne(GLOBAL.value)[..., None], 0.0)
        of_tokens = AttentionGradients(dqkv, dkv_global, dq_global.flatten(0, -2))
        d_low, of_leaves, d_prefix = None, list[Tensor | None](), None
        if self.side is not None and kept.low is not None:
            parts = (*dqkv.split(width, dim=1), *dkv_global.split(width, dim=1), of_tokens.dq_global)
            of_places = [parts[place] for place in self.side.places]
            d_low, of_side = self.side.gradients(kept.low, states.flatten(0, 1), of_places)
            of_leaves += of_side
        if self.trains:
            of_leaves += self._of_weights(of_tokens, states.flatten(0, 1))
        if needs_states:
            d_states = self._of_states(of_tokens, d_states, states.shape, grad_rows, d_low)
        if needs_prefix:
            d_prefix, of_global = found.dqkv[count:, width:], found.dkv_global[count:]
            d_prefix = d_prefix + of_global if of_global.shape[1] else d_prefix.contiguous()
            d_prefix = d_prefix.view(inputs.prefix.shape)
        return d_states if needs_states else None, d_prefix, of_leaves

    def _queries_learn(self) -> bool:
        """Whether something makes the queries of global rows that gets a gradient."""
        if self.trains:
            return self.weights.query_global.requires_grad or self.weights.query_global_bias.requires_grad
        return self.side is not None and QUERY_GLOBAL in self.side.places

    def _of_states(
        self,
        found: AttentionGradients,
        d_states: Tensor | None,
        shape: torch.Size,
        grad_rows: int,
        d_low: Tensor | None,
    ) -> Tensor:
        (dqkv, dkv_global, dq_global), width, weights = found, shape[2], self.weights
        of_qkv, of_kv_global = weights.projections[: 3 * width], weights.projections[3 * width :]
        if d_states is None:
            d_states = (dqkv @ of_qkv).view(shape)
        elif grad_rows == ALL_ROWS:
            d_states.view(-1, width).addmm_(dqkv, of_qkv)
        flat = d_states.view(-1, width)
        if grad_rows == ALL_ROWS:
            flat.addmm_(dkv_global, of_kv_global)
            if self.side is not None and d_low is not None:
                self.side.add_back(d_low, flat)
        elif grad_rows:
            front = d_states[:, :grad_rows]
            front += dqkv.unflatten(0, shape[:2])[:, :grad_rows, width:] @ of_qkv[width:]
            front += dkv_global.unflatten(0, shape[:2])[:, :grad_rows] @ of_kv_global
        if grad_rows and self.pattern.has_tokens:
            project_rows(dq_global, weights.query_global, None, self.pattern, flat)
        return d_states

    def _of_weights(self, found: AttentionGradients, states: Tensor) -> list[Tensor | None]:
        weight, bias, *_ = (tensor.requires_grad for tensor in self.weights)
        *both, dq_global = found
        has_queries = self.pattern.has_tokens and self._queries_learn()
        return [
            torch.cat([part.t() @ states for part in both]) if weight else None,
            torch.cat([part.sum(dim=0) for part in both]) if bias else None,
            dq_global.t() @ states if has_queries else None,
            dq_global.sum(dim=0) if has_queries else None,
        ]


# --- leave ---------------------------------------------------------------------------------------------------------


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
    attended, inner, outer, norm, last_norm = (Linear(part.weight, part.bias) for part in (*linears, *norms))
    dropout, pieces = drops[0].p if drops[0].training else 0.0, [pieces for _, pieces in found]
    return LeavePlan(attended, norm, inner, outer, last_norm, norms[0].eps, dropout, pieces)


def _is_frozen(part: Any, dtype: torch.dtype) -> bool:
    return not part.weight.requires_grad and not part.bias.requires_grad and part.weight.dtype == dtype


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
        leaving, lora = Leave.open(leave, states)
        return run(leaving, rows.to(dtype).contiguous(), states, *lora)
    setting = _setting(own, pattern, prefix.key_values)
    side, of_enter = SidePath.open(enter.pieces, states.shape[0] * states.shape[1], dtype)
    leaving, of_leave = Leave.open(leave, states)
    part = prefix.fused
    if enter.pieces or part is not None:  # their gradients come from all rows
        grad_rows = ALL_ROWS
    attention = Attention(setting, part, grad_rows=grad_rows)
    is_whole = setting.pattern.has_tokens or side is not None
    weights = enter.weights if is_whole else enter.weights.without_global()
    made = Block(Enter(weights, setting.pattern, side), attention, leaving)
    return run(made, states, as_rows(prefix.key_values, states), attention.alpha, *of_enter, *of_leave)


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

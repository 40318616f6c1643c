"""ModernBERT's block on the Triton kernels: how rows enter and leave it, and whether a layer can be fused.

Enter: LayerNorm, which the first layer lacks; q, k, v of all rows; rope.
Leave: output, residual; LayerNorm, gated feed-forward (GEGLU), residual. Inner activations are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention.modernbert import Angles
from prefixprop.attention.patch import has_hooks
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import LayerPrefix, as_rows
from prefixprop.attention.triton.block import (
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
from prefixprop.attention.triton.launch_attention import AttentionGradients
from prefixprop.attention.triton.lora import Piece, SidePath, add_side, fit_together, side_gradients, unwrap
from prefixprop.attention.triton.prefix_part import can_fuse
from prefixprop.attention.triton.residual_norm import ResidualNorm
from prefixprop.attention.triton.rope import Rope
from prefixprop.attention.triton.rotary_attention import kernel_attention, rotary_attention
from prefixprop.attention.triton.shared import Gradients, run

# --- enter ---------------------------------------------------------------------------------------------------------


class EnterPlan(NamedTuple):
    scale: Tensor | None  # of the norm
    projections: Tensor
    epsilon: float
    pieces: list[Piece]  # of LoRA


def enter_of(layer: Any, dtype: torch.dtype) -> EnterPlan | None:
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
    return EnterPlan(norm.weight if has_norm else None, linear.weight, norm.eps if has_norm else 0.0, pieces)


class KeptEnter(NamedTuple):
    mean: Tensor | None
    inverse: Tensor | None  # 1/σ
    low: Tensor | None  # the result of LoRA's `lora_down`
    states: Tensor | None = None  # if backward needs them, and a block does not keep them


@dataclass(frozen=True, slots=True)
class Enter:
    plan: EnterPlan
    side: SidePath | None
    rope: Rope | None = None  # None where attention, and rope with it, is computed elsewhere

    def forward(self, states: Tensor, *lora: Tensor, keeps: bool) -> tuple[tuple[Tensor, Tensor], tuple[KeptEnter]]:
        """Without rope: the projections, and the states again, as the residual."""
        projected, kept = self.project(states)
        has_use = self.plan.scale is not None or self.side is not None
        return (projected, states), (kept._replace(states=states if has_use else None),)

    def backward(
        self, kept: tuple[KeptEnter], needs: Sequence[bool], gradient: Tensor, d_residual: Tensor
    ) -> Gradients:
        d_states, of_lora = self.project_backward(gradient, d_residual, kept[0].states, kept[0], needs[0])
        return d_states, *of_lora

    def project(self, states: Tensor) -> tuple[Tensor, KeptEnter]:
        """q, k and v of all rows, [batch, length, 3 width]."""
        (scale, projections, epsilon, _), normed, mean, inverse = self.plan, states.flatten(0, -2), None, None
        if scale is not None:
            normed, mean, inverse = torch.native_layer_norm(normed, scale.shape, scale, None, epsilon)
        projected = normed @ projections.t()
        low = add_side(self.side, normed, projected)
        return projected.unflatten(0, states.shape[:-1]), KeptEnter(mean, inverse, low)

    def project_backward(
        self, gradient: Tensor, d_residual: Tensor, states: Tensor | None, kept: KeptEnter, needs_states: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Gradients of the states and of LoRA's matrices."""
        (scale, projections, epsilon, _), gradient = self.plan, gradient.flatten(0, -2)
        d_normed = gradient @ projections if needs_states else None
        of_side = list[Tensor]()
        if self.side is not None and states is not None:
            normed = states if scale is None else _norm(states, scale, epsilon)
            of_side = side_gradients(self.side, kept.low, normed.flatten(0, -2), gradient, d_normed)
        if d_normed is None:
            return None, of_side
        if scale is None:
            return d_normed.view_as(d_residual).add_(d_residual), of_side
        assert states is not None and kept.mean is not None and kept.inverse is not None
        moments = torch.cat([kept.mean, kept.inverse], dim=1).float()
        norm = ResidualNorm(scale, None, epsilon, 0.0, scale, scale)
        d_states, *_ = norm.gradients(d_normed.view_as(states), states, moments, d_residual.contiguous())
        return d_states, of_side

    def enter(self, states: Tensor, prefix: Tensor) -> tuple[Tensor, KeptEnter]:
        """The input of the attention kernels (see `shared`)."""
        assert self.rope is not None
        projected, kept = self.project(states)
        return self.rope.rotate(projected, prefix), kept

    def kv_global(self, states: Tensor, prefix: Tensor, kept: KeptEnter) -> None:
        """Global rows share the projections of all rows."""

    def enter_backward(
        self,
        found: AttentionGradients,
        d_states: Tensor,
        inputs: BlockInputs,
        kept: KeptEnter,
        grad_rows: int,
        needs: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, list[Tensor]]:
        """Gradients of the states, of the prefix, and of LoRA's matrices; `d_states` is that of the residual."""
        assert self.rope is not None
        needs_states, needs_prefix = needs
        needs_projections = needs_states or self.side is not None
        d_projected, d_prefix = self.rope.rotate_backward(found.dqkv, needs_projections, needs_prefix)
        if d_projected is None:
            return None, d_prefix, []
        found_states, of_side = self.project_backward(d_projected, d_states, inputs.states, kept, needs_states)
        return found_states, d_prefix, of_side


# --- leave ---------------------------------------------------------------------------------------------------------


def leave_of(layer: Any, dtype: torch.dtype) -> LeavePlan | None:
    """None where weights are not frozen or have a bias, or a part has hooks."""
    norm, mlp, drop = layer.mlp_norm, layer.mlp, layer.attn.out_drop
    found = [both for linear in (layer.attn.Wo, mlp.Wi, mlp.Wo) if (both := unwrap(linear)) is not None]
    if len(found) < 3 or not fit_together([piece for _, pieces in found for piece in pieces]):
        return None
    if any(map(has_hooks, (layer.attn, norm, mlp, mlp.act, mlp.drop, drop))) or (mlp.drop.training and mlp.drop.p):
        return None
    if type(mlp.act) is not GELUActivation or type(norm) is not nn.LayerNorm:
        return None
    linears = [linear for linear, _ in found]
    if not all(_is_frozen(part, dtype) for part in (*linears, norm)):
        return None
    attended, inner, outer, scale = (Linear(part.weight, None) for part in (*linears, norm))
    dropout = float(drop.p) if isinstance(drop, nn.Dropout) and drop.training else 0.0
    return LeavePlan(attended, scale, inner, outer, None, norm.eps, dropout, [pieces for _, pieces in found])


def _is_frozen(part: Any, dtype: torch.dtype) -> bool:
    return not part.weight.requires_grad and part.bias is None and part.weight.dtype == dtype


def _norm(rows: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    return torch.native_layer_norm(rows, scale.shape, scale, None, epsilon)[0]  # not affected by autocast


# --- layers --------------------------------------------------------------------------------------------------------


def plan_of(layer: Any, dtype: torch.dtype, join: Join) -> BlockPlan:
    leave = leave_of(layer, dtype)
    return BlockPlan(None if leave is None else enter_of(layer, dtype), leave)


def modernbert_layer(
    layer: Any,
    plans: Plans,
    states: Tensor,
    pattern: AttentionPattern,
    angles: Angles,
    reach: int | None,
    prefix: LayerPrefix,
) -> Tensor | None:
    """The output of a ModernBertEncoderLayer with frozen weights; None for other layers.

    Rows see `reach` neighbours on either side, or all rows if it is None.
    """
    dtype = compute_type(states)
    plan = plan_for(plans, layer, dtype, plan_of)
    if plan.leave is None:
        return None
    states = states.to(dtype).contiguous()  # autocast has float32 in front of the first layer
    attention, heads = layer.attn, layer.attn.config.num_attention_heads
    dropout = attention.attention_dropout if attention.training else 0.0
    size = states.shape[-1] // heads
    if plan.enter is None or reach is None or not can_fuse(prefix, pattern, size, states):
        given = (angles, heads, reach, pattern, *prefix, dropout)
        return in_parts(layer, plan, states, lambda projected: rotary_attention(projected, *given))
    side, of_enter = SidePath.open(plan.enter.pieces, states.shape[0] * states.shape[1], dtype)
    made = kernel_attention(heads, size, reach, pattern, prefix, dropout)
    leaving, of_leave = Leave.open(plan.leave, states)
    rope = Rope.in_order(angles, heads, states, made.setting.shape.prefix)
    whole = Block(Enter(plan.enter, side, rope), made, leaving)
    keys = prefix.key_values if prefix.part is None else None
    return run(whole, states, as_rows(keys, states), made.alpha, *of_enter, *of_leave)


def in_parts(layer: Any, plan: BlockPlan, states: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
    """The same with attention computed by `attend`, from queries, keys and values."""
    if plan.enter is None:
        projected = layer.attn.Wqkv(layer.attn_norm(states))
    else:
        side, lora = SidePath.open(plan.enter.pieces, states.shape[0] * states.shape[1], states.dtype)
        projected, states = run(Enter(plan.enter, side), states, *lora)
    rows = attend(projected).to(states.dtype).contiguous()
    leaving, of_leave = Leave.open(plan.leave, states)
    return run(leaving, rows, states, *of_leave)

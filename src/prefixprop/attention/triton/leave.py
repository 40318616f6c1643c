"""How rows leave a block: attention's output, residual and norm, then the feed-forward with residual and, at the end,
another norm (Longformer) or none (ModernBERT, whose norms come first).

Nothing is kept for gradients of weights. Gradients of the residual stream are added where they are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prefixprop.attention.triton.dropout import draw_dropout_seeds
from prefixprop.attention.triton.geglu import geglu_backward, geglu_forward
from prefixprop.attention.triton.lora import Piece, SidePath, add_side, side_gradients
from prefixprop.attention.triton.operation import Gradients
from prefixprop.attention.triton.residual_norm import ResidualNorm


class Linear(NamedTuple):
    weight: Tensor
    bias: Tensor | None


class LeavePlan(NamedTuple):
    attended: Linear  # attention's output
    norm: Linear
    inner: Linear
    outer: Linear
    last_norm: Linear | None  # without it: GEGLU in place of GELU, and activations that backward computes again
    epsilon: float
    dropout: float  # after attention and, in front of the last norm, after the feed-forward
    pieces: list[list[Piece]]  # of LoRA, around each of the three linear layers


class KeptLeave(NamedTuple):
    """What backward needs of forward; of attention's rows and low-rank products only what LoRA asks for."""

    rows: Tensor | None
    total: Tensor  # what is normalised
    moments: Tensor
    inner: Tensor | None
    last_total: Tensor | None
    last_moments: Tensor | None
    attended_low: Tensor | None
    inner_low: Tensor | None
    outer_low: Tensor | None


@dataclass(frozen=True, slots=True)
class Leave:
    plan: LeavePlan
    norm: ResidualNorm
    last_norm: ResidualNorm | None
    attended_side: SidePath | None
    inner_side: SidePath | None
    outer_side: SidePath | None

    @classmethod
    def open(cls, plan: LeavePlan, states: Tensor) -> tuple[Leave, list[Tensor]]:
        """For one call, and LoRA's matrices."""
        rows, width = states.shape[0] * states.shape[1], states.shape[2]
        opened = [SidePath.open(pieces, rows, states.dtype) for pieces in plan.pieces]
        norms = [norm for norm in (plan.norm, plan.last_norm) if norm is not None]
        seeds = draw_dropout_seeds((rows, width) * len(norms), plan.norm.weight, plan.dropout)
        first, *last = (
            ResidualNorm(*norm, plan.epsilon, plan.dropout, *seeds[2 * index : 2 * index + 2])
            for index, norm in enumerate(norms)
        )
        leave = cls(plan, first, last[0] if last else None, *(side for side, _ in opened))
        return leave, [matrix for _, own in opened for matrix in own]

    @property
    def reads_rows(self) -> bool:
        """Whether backward needs attention's rows."""
        return self.attended_side is not None

    def forward(self, rows: Tensor, states: Tensor, *lora: Tensor, keeps: bool) -> tuple[Tensor, tuple[KeptLeave]]:
        plan, last_norm = self.plan, self.last_norm
        update = F.linear(rows, *plan.attended)
        attended_low = add_side(self.attended_side, rows, update)
        normed, total, moments = self.norm.normalise(update, states, keeps or last_norm is None)
        del update
        inner = F.linear(normed, *plan.inner)
        inner_low = add_side(self.inner_side, normed, inner)
        active = self._active(inner)
        own = rows if self.reads_rows else None
        if last_norm is None:
            output = self._plus(total, active, in_place=not keeps)
            outer_low = add_side(self.outer_side, active, output)
            return output, (KeptLeave(own, total, moments, None, None, None, attended_low, None, outer_low),)
        update = F.linear(active, *plan.outer)
        outer_low = add_side(self.outer_side, active, update)
        del active
        output, last_total, last_moments = last_norm.normalise(update, normed, keeps)
        lows = (attended_low, inner_low, outer_low)
        return output, (KeptLeave(own, total, moments, inner, last_total, last_moments, *lows),)

    def _active(self, inner: Tensor) -> Tensor:
        return geglu_forward(inner) if self.last_norm is None else F.gelu(inner)

    def _plus(self, total: Tensor, active: Tensor, in_place: bool) -> Tensor:
        """The residual plus the product of the last linear layer."""
        flat, active, weight = total.flatten(0, -2), active.flatten(0, -2), self.plan.outer.weight.t()
        if in_place:
            flat.addmm_(active, weight)
            return total
        output = torch.empty_like(total)  # not a view: a prefix may be added in place
        torch.addmm(flat, active, weight, out=output.view_as(flat))
        return output

    def backward(self, all_kept: tuple[KeptLeave], needs: Sequence[bool], gradient: Tensor) -> Gradients:
        """Gradients of the rows and of the states, and of LoRA's matrices."""
        (kept,), plan, flat = all_kept, self.plan, (-1, gradient.shape[-1])
        inner, inner_low, normed = kept.inner, kept.inner_low, None
        if self.last_norm is None:
            normed = self._normed(kept.total.view(flat))
            inner = F.linear(normed, *plan.inner)
            inner_low = add_side(self.inner_side, normed, inner)
            d_normed, d_outer = None, gradient.view(flat)
        else:
            assert kept.last_total is not None and kept.last_moments is not None
            d_normed, d_outer, _ = self.last_norm.gradients(gradient, kept.last_total, kept.last_moments)
            d_normed, d_outer = d_normed.view(flat), d_outer.view(flat)
        assert inner is not None
        inner = inner.flatten(0, -2)
        d_active = d_outer @ plan.outer.weight
        of_outer, of_inner, of_attended = list[Tensor](), list[Tensor](), list[Tensor]()
        if self.outer_side is not None:
            of_outer = side_gradients(self.outer_side, kept.outer_low, self._active(inner), d_outer, d_active)
        if d_normed is None:
            geglu_backward(inner, d_active, inner)  # replaced by its own gradient, as it is used nowhere else
            d_inner = inner
            d_normed = d_inner @ plan.inner.weight
        else:
            d_inner = torch.ops.aten.gelu_backward.grad_input(d_active, inner, grad_input=d_active)
            d_normed.addmm_(d_inner, plan.inner.weight)
        if self.inner_side is not None:
            normed = self._normed(kept.total.view(flat)) if normed is None else normed
            of_inner = side_gradients(self.inner_side, inner_low, normed, d_inner, d_normed)
        del normed, inner, d_inner, d_active, d_outer
        d_total = gradient if self.last_norm is None else None
        d_states, d_update, _ = self.norm.gradients(d_normed.view_as(gradient), kept.total, kept.moments, d_total)
        d_update = d_update.view(flat)
        d_rows = d_update @ plan.attended.weight
        if kept.rows is not None:
            rows = kept.rows.flatten(0, -2)
            of_attended = side_gradients(self.attended_side, kept.attended_low, rows, d_update, d_rows)
        return d_rows.view_as(gradient), d_states, *of_attended, *of_inner, *of_outer

    def _normed(self, total: Tensor) -> Tensor:
        # Not affected by autocast.
        return torch.native_layer_norm(total, total.shape[-1:], *self.plan.norm, self.plan.epsilon)[0]

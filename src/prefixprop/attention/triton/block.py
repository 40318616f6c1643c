"""A layer as one operation: enter (norm, projections, rope, LoRA) → attend → leave (output, residual, feed-forward).

The families (`longformer`, `modernbert`) differ in how rows enter, and in few steps on leaving. Parts have forward
and backward side by side, and are made for each call from the layer's plan. Frozen weights get no gradient, and
nothing is stored for one. Gradients of the residual stream are added up where they are computed.

If modules that are trained, wrapped or hooked compute the beginning or the end, or PyTorch's flash attention computes
the middle, the remaining parts are separate operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter, contains, methodcaller
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from prefixprop.attention.patch import GLOBAL_HOOKS, HOOKS
from prefixprop.attention.pattern import ALL_ROWS
from prefixprop.attention.prefix import FusedPart
from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.geglu import geglu_backward, geglu_forward
from prefixprop.attention.triton.launch_attention import AttentionGradients, AttentionInputs, Setting
from prefixprop.attention.triton.lora import Piece, SidePath, add_side, side_gradients
from prefixprop.attention.triton.prefix_part import add_gradients, add_part
from prefixprop.attention.triton.residual_norm import ResidualNorm
from prefixprop.attention.triton.shared import GLOBAL, Gradients, draw_dropout_seeds, run

Join = Callable[[str, list[Tensor]], Tensor]
_VALUES, _TYPE, _VERSION = methodcaller("values"), attrgetter("dtype", "requires_grad"), attrgetter("_version")
_TRAINING, _PROBABILITY = attrgetter("training"), attrgetter("p")

# --- attend --------------------------------------------------------------------------------------------------------


class KeptAttention(NamedTuple):
    qkv: Tensor
    kv_global: Tensor | None
    rows: Tensor  # of the softmax alone
    lse: Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """The middle of a block; or an operation on projections (see `shared`)."""

    setting: Setting
    part: FusedPart | None = None  # attention to the prefix outside the softmax (Eq. 3)
    part_kind: Tensor | None = None  # kinds of rows for that, where global rows share the projections of all
    grad_rows: int = ALL_ROWS  # rows at the front, all of them global, whose states get a gradient
    has_text: bool = False  # the output of all rows but the global ones is computed elsewhere

    @property
    def alpha(self) -> Tensor | None:
        return None if self.part is None else self.part.trained

    def attend(
        self, qkv: Tensor, kv_global: Tensor | None, text: Tensor | None = None
    ) -> tuple[Tensor, KeptAttention]:
        others = None if text is None else text.clone(memory_format=torch.contiguous_format)
        given = AttentionInputs(qkv, kv_global, *self.setting)
        rows, lse = launch_attention.forward(given, others)
        return self.with_part(rows, given), KeptAttention(qkv, kv_global, rows, lse)

    def with_part(self, rows: Tensor, given: AttentionInputs) -> Tensor:
        return rows if self.part is None else add_part(rows, self._of_part(given), self.part)

    def attend_backward(self, d_output: Tensor, kept: KeptAttention) -> tuple[AttentionGradients, Tensor | None]:
        """Gradients of the projections, and of a trained α."""
        given = AttentionInputs(kept.qkv, kept.kv_global, *self.setting)
        if self.has_text:
            found = launch_attention.backward_of_global_rows(d_output, kept.rows, kept.lse, given)
        else:
            found = launch_attention.backward(d_output, kept.rows, kept.lse, given, self.grad_rows)
        d_alpha = None if self.part is None else add_gradients(d_output, self._of_part(given), self.part, found)
        return found, d_alpha

    def _of_part(self, given: AttentionInputs) -> AttentionInputs:
        if self.part_kind is None:
            return given
        return given._replace(pattern=given.pattern._replace(kind=self.part_kind))

    def forward(
        self, qkv: Tensor, kv_global: Tensor | None, text: Tensor | None, alpha: Tensor | None, keeps: bool
    ) -> tuple[Tensor, tuple[KeptAttention]]:
        """With `text`, gradients of the global rows in it must not be used."""
        output, kept = self.attend(qkv, kv_global, text)
        return output, (kept,)

    def backward(self, kept: tuple[KeptAttention], needs: Sequence[bool], gradient: Tensor) -> Gradients:
        found, d_alpha = self.attend_backward(gradient, kept[0])
        d_text = gradient if self.has_text else None
        if kept[0].kv_global is None:
            return found.dqkv, None, d_text, d_alpha
        kind = self.setting.pattern.kind
        queries = found.dqkv[: kind.numel(), : self.setting.shape.width]
        is_global = kind.flatten().eq(GLOBAL.value)[:, None]
        queries.copy_(torch.where(is_global, found.dq_global.flatten(0, 1), queries))
        return found.dqkv, found.dkv_global, d_text, d_alpha


# --- leave ---------------------------------------------------------------------------------------------------------


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


def leave_layer(
    leave_of: Callable[[Any, torch.dtype], LeavePlan | None], layer: Any, rows: Tensor, states: Tensor
) -> Tensor | None:
    """What leaves a layer for rows whose attention was computed elsewhere; None where the layer is not frozen."""
    dtype = compute_type(states)
    plan = leave_of(layer, dtype)
    if plan is None:
        return None
    states = states.to(dtype).contiguous()
    leaving, lora = Leave.open(plan, states)
    left: Tensor = run(leaving, rows.to(dtype).contiguous(), states, *lora)
    return left


# --- a whole block -------------------------------------------------------------------------------------------------


class BlockInputs(NamedTuple):
    states: Tensor
    prefix: Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """A layer's output from its states; without `leave`, the output of its attention.

    `leaves` are what else learns: the weights of `enter`, if it trains them, or LoRA's matrices, of `enter` and then
    of `leave`. Keys and values of global rows are not kept: backward computes them again.
    """

    enter: Any
    attention: Attention
    leave: Any = None

    def forward(
        self, states: Tensor, prefix: Tensor, alpha: Tensor | None, *leaves: Tensor, keeps: bool
    ) -> tuple[Tensor, tuple]:
        qkv, entered = self.enter.enter(states, prefix)
        output, attended = self.attention.attend(qkv, self.enter.kv_global(states, prefix, entered))
        kept = (BlockInputs(states, prefix), entered, attended._replace(kv_global=None))
        if self.leave is None:
            return output, kept
        output, (left,) = self.leave.forward(output, states, keeps=keeps)
        return output, (*kept, left._replace(rows=None))

    def backward(self, kept: tuple, needs: Sequence[bool], gradient: Tensor) -> Gradients:
        inputs, entered, attended, *left = kept
        attended = attended._replace(kv_global=self.enter.kv_global(*inputs, entered))
        d_states, of_leave = None, list[Tensor]()
        if self.leave is not None:
            given = AttentionInputs(attended.qkv, attended.kv_global, *self.attention.setting)
            rows = self.attention.with_part(attended.rows, given) if self.leave.reads_rows else None
            gradient, d_states, *of_leave = self.leave.backward((left[0]._replace(rows=rows),), (), gradient)
        found, d_alpha = self.attention.attend_backward(gradient, attended)
        d_states, d_prefix, of_enter = self.enter.enter_backward(
            found, d_states, inputs, entered, self.attention.grad_rows, needs[:2]
        )
        return d_states, d_prefix, d_alpha, *of_enter, *of_leave


def compute_type(states: Tensor) -> torch.dtype:
    """The type that a projection would have, under autocast too."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


# --- plans ---------------------------------------------------------------------------------------------------------
# Every call compares a cheap fingerprint of the layer: modules, parameters and their types, hooks, adapters, dropout,
# training mode, and of weights that were copied their addresses and versions. In-place changes (`load_state_dict`,
# `copy_`) raise a parameter's version. The one way past PyTorch's counter is to write into `parameter.data` in place,
# as peft does to merge an adapter; what is merged is part of the fingerprint.


class BlockPlan(NamedTuple):
    """The two ends of a block: weights and LoRA, or None where modules must be called."""

    enter: Any
    leave: Any


class KeptPlan:
    """The plan of one layer, for its present state.

    `work_out` is a family's function of the layer, the type to compute in, and how to join weights.
    """

    def __init__(self, layer: nn.Module, work_out: Callable[[Any, torch.dtype, Join], BlockPlan]) -> None:
        self.layer, self.work_out = layer, work_out
        self._joined: dict[str, tuple[Any, Tensor]] = {}
        self._state: Any = None
        self._tables: list[Any] = []

    def __reduce__(self) -> Any:
        """A copy of a layer makes a plan of its own."""
        return KeptPlan, (self.layer, self.work_out)

    def _watch(self) -> None:
        """Remember where to look; again whenever a module was replaced."""
        parts = list(self.layer.modules())
        self._parts = parts
        self._tables = [table for part in parts for table in (part._modules, part._parameters)]
        self._hooks = [getattr(part, name) for part in parts for name in HOOKS] + GLOBAL_HOOKS
        self._attributes = [vars(part) for part in parts]
        self._dropouts = [part for part in parts if isinstance(part, nn.Dropout)]
        self._lora: list[Any] = [part for part in parts if isinstance(part, LoraLayer)]
        # Kept, for no other object to get their addresses.
        self._found = [*chain.from_iterable(map(_VALUES, self._tables))]
        self._tensors: list[Tensor] = [found for found in self._found if isinstance(found, Tensor)]
        self._copied: list[Tensor] = []  # to joined weights; a plan refers to all other tensors

    def for_type(self, dtype: torch.dtype) -> BlockPlan:
        if not self._tables or self._fingerprint(dtype) != self._state:
            self._watch()
            plan = self.work_out(self.layer, dtype, self._join)
            if not _can_be_kept(self._tensors):
                return plan
            self._plan, self._state = plan, self._fingerprint(dtype)
        return self._plan

    def _fingerprint(self, dtype: torch.dtype) -> tuple[Any, ...]:
        # Maps of built-in functions, because this runs for every layer of every pass.
        return (
            dtype,
            [*map(id, chain.from_iterable(map(_VALUES, self._tables)))],
            [*map(_TYPE, self._tensors)],
            [*map(_VERSION, self._copied)],
            [*map(Tensor.data_ptr, self._copied)],
            [*map(_TRAINING, self._parts)],
            [*map(len, self._hooks)],
            [*map(contains, self._attributes, repeat("_hf_hook"))],
            [*map(_PROBABILITY, self._dropouts)],
            [*map(_adapters, self._lora)],
        )

    def _join(self, name: str, tensors: list[Tensor]) -> Tensor:
        """The tensors one after the other, made again only if one of them has changed.

        At the same address if it can be: a recorded pass goes on reading there.
        """
        if not _can_be_kept(tensors):
            return torch.cat(tensors)
        made, joined = self._joined.get(name, (None, None))
        self._copied += tensors
        merged = [[*lora.merged_adapters] for lora in self._lora]
        key = [(t.data_ptr(), t._version, t.dtype) for t in tensors], merged
        if joined is not None and made == key:
            return joined
        # Not under inference mode, whose tensors cannot be used for training afterwards.
        with torch.inference_mode(False), torch.no_grad():
            like, length = tensors[0], sum(map(len, tensors))
            if joined is None or joined.shape != (length, *like.shape[1:]) or _kind(joined) != _kind(like):
                joined = like.new_empty(length, *like.shape[1:])
            torch.cat(tensors, out=joined)
        self._joined[name] = key, joined
        return joined


Plans = dict[nn.Module, KeptPlan]  # of layers


def plan_for(
    plans: Plans, layer: nn.Module, dtype: torch.dtype, work_out: Callable[[Any, torch.dtype, Join], BlockPlan]
) -> BlockPlan:
    """The plan of a layer, kept in `plans`."""
    kept = plans.get(layer)
    if kept is None:
        kept = plans[layer] = KeptPlan(layer, work_out)
    return kept.for_type(dtype)


def _adapters(lora: Any) -> tuple[Any, ...]:
    return (
        [*lora.active_adapters],
        lora.disable_adapters,
        [*lora.merged_adapters],
        dict(lora.scaling),
        [*lora.lora_variant],
        vars(lora).get("forward"),  # the object itself, so that no other gets its address
    )


def _can_be_kept(tensors: Sequence[Tensor]) -> bool:
    """Whether what is made of the tensors outlives a pass.

    Not while operations are recorded for a CUDA graph: they are not computed yet, and their results belong to it. And
    not of tensors made under inference mode: PyTorch does not count their versions.
    """
    is_recording = any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()
    return not (is_recording or any(tensor.is_inference() for tensor in tensors))


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device

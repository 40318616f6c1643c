"""A layer as one operation: enter (norm, projections, rope, LoRA) → attend → leave (output, residual, feed-forward).

The two families differ in how rows enter and leave (`longformer`, `modernbert`): objects with forward and backward
side by side, made for each call from what is kept in the layer's plan. Weights that are frozen get no gradient, and
nothing is kept for one. Gradients of the residual stream are added up where they are computed.

Where modules that are trained, wrapped or hooked compute an end, or PyTorch's flash attention the middle, the
remaining parts are operations of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prefixprop.attention.pattern import ALL_ROWS
from prefixprop.attention.prefix import FusedPart
from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.launch_attention import AttentionGradients, AttentionInputs, Setting
from prefixprop.attention.triton.operation import Gradients
from prefixprop.attention.triton.prefix_part import add_gradients, add_part
from prefixprop.attention.triton.tiles import GLOBAL


class KeptAttention(NamedTuple):
    qkv: Tensor
    kv_global: Tensor | None
    rows: Tensor  # of the softmax alone
    lse: Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """The middle of a block; or an operation on projections (see `tiles`)."""

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

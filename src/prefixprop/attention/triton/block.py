"""A layer as one operation: enter (norm, projections, rope, LoRA) → attend → leave (output, residual, feed-forward).

The two families differ in how rows enter and leave (`longformer`, `modernbert`): objects with a `forward` and a
`backward` side by side, made for each call from what is kept in the layer's plan. Weights that are frozen get no
gradient, and nothing is kept for one. Gradients of the residual stream are added up where they are computed.

Where somebody else computes the middle or an end (modules that are trained, wrapped or hooked, PyTorch's flash
attention), the remaining parts are operations of their own: `Enter`, `Attend`, `Leave`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from prefixprop.attention.pattern import ALL_ROWS
from prefixprop.attention.prefix import FusedPart
from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.launch_attention import AttentionGradients, AttentionInputs, Setting
from prefixprop.attention.triton.prefix_part import add_gradients, add_part
from prefixprop.attention.triton.tiles import GLOBAL


def run(operation: Any, *arguments: Any) -> Any:
    """The operation's result; through autograd only if something learns, which saves the host time."""
    learns = torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in arguments)
    return operation.apply(*arguments) if learns else operation.compute(*arguments, keeps=False)[0]


def compute_type(states: Tensor) -> torch.dtype:
    """The type that a projection would have, under autocast too."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


# --- the middle ----------------------------------------------------------------------------------------------------


class Attention(NamedTuple):
    """How a block attends."""

    setting: Setting
    part: FusedPart | None = None  # attention to the prefix outside the softmax (Eq. 3)
    part_kind: Tensor | None = None  # kinds of rows for that, where global rows share the projections of all
    grad_rows: int = ALL_ROWS  # rows at the front, all of them global, whose states get a gradient

    def inputs(self, qkv: Tensor, kv_global: Tensor | None) -> AttentionInputs:
        return AttentionInputs(qkv, kv_global, *self.setting)

    def forward(self, given: AttentionInputs, text: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The output; and for backward that of the softmax alone, and its log-sum-exp.

        `text` is the output of all rows but the global ones, if it was computed elsewhere.
        """
        others = None if text is None else text.clone(memory_format=torch.contiguous_format)
        rows, lse = launch_attention.forward(given, others)
        return self.with_part(rows, given), rows, lse

    def with_part(self, rows: Tensor, given: AttentionInputs) -> Tensor:
        return rows if self.part is None else add_part(rows, self._of_part(given), self.part)

    def backward(
        self, d_output: Tensor, rows: Tensor, lse: Tensor, given: AttentionInputs, has_text: bool = False
    ) -> tuple[AttentionGradients, Tensor | None]:
        """Gradients of the projections, and of a trained α."""
        if has_text:
            found = launch_attention.backward_of_global_rows(d_output, rows, lse, given)
        else:
            found = launch_attention.backward(d_output, rows, lse, given, self.grad_rows)
        d_alpha = None if self.part is None else add_gradients(d_output, self._of_part(given), self.part, found)
        return found, d_alpha

    def _of_part(self, given: AttentionInputs) -> AttentionInputs:
        if self.part_kind is None:
            return given
        return given._replace(pattern=given.pattern._replace(kind=self.part_kind))


class Attend(torch.autograd.Function):
    """Attention from projections (see `tiles`).

    With `text`, gradients of the global rows in it must not be used.
    """

    @staticmethod
    def compute(
        attention: Attention,
        qkv: Tensor,
        kv_global: Tensor | None,
        text: Tensor | None,
        alpha: Tensor | None,
        keeps: bool = True,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, rows, lse = attention.forward(attention.inputs(qkv, kv_global), text)
        return output, (rows, lse)

    @staticmethod
    def forward(
        ctx: Any,
        attention: Attention,
        qkv: Tensor,
        kv_global: Tensor | None,
        text: Tensor | None,
        alpha: Tensor | None,
    ) -> Tensor:
        output, kept = Attend.compute(attention, qkv, kv_global, text, alpha)
        ctx.attention, ctx.has_text = attention, text is not None
        ctx.save_for_backward(qkv, kv_global, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, kv_global, rows, lse = ctx.saved_tensors
        given = ctx.attention.inputs(qkv, kv_global)
        found, d_alpha = ctx.attention.backward(gradient.contiguous(), rows, lse, given, ctx.has_text)
        d_text = gradient if ctx.has_text else None
        if kv_global is None:
            return None, found.dqkv, None, d_text, d_alpha
        kind, width = given.pattern.kind, given.shape.width
        queries = found.dqkv[: kind.numel(), :width]
        is_global = kind.flatten().eq(GLOBAL.value)[:, None]
        queries.copy_(torch.where(is_global, found.dq_global.flatten(0, 1), queries))
        return None, found.dqkv, found.dkv_global, d_text, d_alpha


# --- a whole block, and its ends -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A block's three parts, for one call; without `leave` it ends with the output of attention."""

    enter: Any
    attention: Attention
    leave: Any = None


class Block(torch.autograd.Function):
    """A layer's output from its states; `leaves` are what else learns: the weights of `enter`, if it trains them, or
    the matrices of LoRA, of `enter` and then of `leave`."""

    @staticmethod
    def compute(
        call: Call, states: Tensor, prefix: Tensor, alpha: Tensor | None, *leaves: Tensor, keeps: bool = True
    ) -> tuple[Tensor, tuple[tuple, tuple]]:
        enter, attention, leave = call
        qkv, entered = enter.forward(states, prefix)
        # Backward computes the keys and values of global rows again.
        output, rows, lse = attention.forward(attention.inputs(qkv, enter.kv_global(states, prefix, entered)))
        left: tuple = ()
        if leave is not None:
            output, left = leave.forward(output, states, keeps)
        return output, ((qkv, rows, lse), (entered, left))

    @staticmethod
    def forward(
        ctx: Any, call: Call, states: Tensor, prefix: Tensor, alpha: Tensor | None, *leaves: Tensor
    ) -> Tensor:
        output, (attended, (entered, left)) = Block.compute(call, states, prefix, alpha, *leaves)
        ctx.call, ctx.count = call, len(entered)
        ctx.save_for_backward(states, prefix, *attended, *entered, *left)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        enter, attention, leave = ctx.call
        states, prefix, qkv, rows, lse, *kept = ctx.saved_tensors
        entered = enter.Kept(*kept[: ctx.count])
        given = attention.inputs(qkv, enter.kv_global(states, prefix, entered))
        d_output, d_states, of_leave = gradient.contiguous(), None, []
        if leave is not None:
            output = attention.with_part(rows, given) if leave.reads_rows else None
            left = leave.Kept(*kept[ctx.count :])
            d_output, d_states, of_leave = leave.backward(d_output, output, left)
            del output, left
        found, d_alpha = attention.backward(d_output, rows, lse, given)
        d_states, d_prefix, of_enter = enter.backward(
            found, d_states, states, prefix, entered, attention.grad_rows, ctx.needs_input_grad[1:3]
        )
        return None, d_states, d_prefix, d_alpha, *of_enter, *of_leave


class Leave(torch.autograd.Function):
    """A layer's output from the output of its attention and from its input states."""

    @staticmethod
    def compute(
        leave: Any, rows: Tensor, states: Tensor, *lora: Tensor, keeps: bool = True
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        return leave.forward(rows, states, keeps)

    @staticmethod
    def forward(ctx: Any, leave: Any, rows: Tensor, states: Tensor, *lora: Tensor) -> Tensor:
        output, left = leave.forward(rows, states, True)
        ctx.leave = leave
        ctx.save_for_backward(rows if leave.reads_rows else None, *left)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, *left = ctx.saved_tensors
        d_rows, d_states, of_lora = ctx.leave.backward(gradient.contiguous(), rows, ctx.leave.Kept(*left))
        return None, d_rows, d_states, *of_lora


class Enter(torch.autograd.Function):
    """The projections of a layer whose attention is computed elsewhere, and the states again, as the residual."""

    @staticmethod
    def compute(
        enter: Any, states: Tensor, *lora: Tensor, keeps: bool = True
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor | None, ...]]:
        projected, entered = enter.project(states)
        return (projected, states), entered

    @staticmethod
    def forward(ctx: Any, enter: Any, states: Tensor, *lora: Tensor) -> tuple[Tensor, Tensor]:
        output, entered = Enter.compute(enter, states)
        ctx.enter = enter
        ctx.save_for_backward(states if enter.reads_states else None, *entered)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, d_residual: Tensor) -> tuple[Tensor | None, ...]:
        states, *entered = ctx.saved_tensors
        d_states, of_lora = ctx.enter.project_backward(
            gradient.contiguous(), d_residual, states, ctx.enter.Kept(*entered), ctx.needs_input_grad[1]
        )
        return None, d_states, *of_lora

"""Longformer: virtual tokens are global; prefix keys and values are seen by local and global tokens alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LongformerForSequenceClassification

from prefixprop.attention.longformer import LongformerPatch
from prefixprop.attention.patch import Undo, replace_forward
from prefixprop.attention.prefix import PrefixSource
from prefixprop.backbones.base import EncoderBackbone, RobertaPositions, without_prefix

WHOLE_SEQUENCE_PROJECTIONS = ("query", "key", "value", "key_global", "value_global")


class LongformerBackbone(RobertaPositions, EncoderBackbone):
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "value", "query_global", "value_global")
    has_fast_attention: ClassVar[bool] = True
    read_projections: ClassVar[tuple[str, str, str]] = ("query_global", "key_global", "value_global")

    def prepend(self, rows: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        (hidden_states,), mask = args, kwargs["attention_mask"]
        # Longformer writes a mask as: negative for padding, 0 for local, positive for global tokens.
        mask = F.pad(mask, (rows.shape[1], 0), value=torch.finfo(mask.dtype).max)
        batch, length, width = hidden_states.shape
        states = hidden_states.new_empty(batch, rows.shape[1] + length, width)  # four times as fast as torch.cat
        _copy(hidden_states, states[:, rows.shape[1] :])
        states[:, : rows.shape[1]] = rows
        return (states,), dict(kwargs, attention_mask=mask)

    def keep_tokens(self, output: Any, virtual_tokens: int, pooled_row: bool) -> Any:
        output.last_hidden_state = without_prefix(output.last_hidden_state, virtual_tokens, pooled_row)
        if output.hidden_states is not None:
            output.hidden_states = tuple(state[:, virtual_tokens:] for state in output.hidden_states)
        if output.attentions is not None:
            # Virtual tokens come first among the rows, and first among the columns of global tokens.
            output.attentions = tuple(
                weights[:, :, virtual_tokens:, virtual_tokens:] for weights in output.attentions
            )
        if output.global_attentions is not None:
            kept = tuple(weights[:, :, virtual_tokens:, virtual_tokens:] for weights in output.global_attentions)
            output.global_attentions = kept if kept[0].shape[-1] else None
        return output

    def finish(self, output: Any, pooled_row: bool, drop_pooled_row: bool) -> Any:
        if not drop_pooled_row:
            return output
        if isinstance(output, tuple):
            return (output[0][:, 1:], *output[1:])
        output.last_hidden_state = output.last_hidden_state[:, 1:]
        return output

    def as_tuple(self, output: Any) -> tuple[Any, ...]:
        rest = output.to_tuple()[1 if output.pooler_output is None else 2 :]
        return (output.last_hidden_state, output.pooler_output, *rest)  # a pooler that is missing has its place

    def attach(self, source: PrefixSource) -> list[Undo]:
        attention = LongformerPatch.of(self.module)
        undo = [*super().attach(source), attention.listen_to(source)]
        if isinstance(self.model, LongformerForSequenceClassification):
            attention.serve(self.model)
        linears = [
            getattr(layer.attention.self, name) for layer in self.layers for name in WHOLE_SEQUENCE_PROJECTIONS
        ]
        # Still trainable: peft is about to freeze them.
        undo += [
            replace_forward(linear, _linear_as_when_trainable) for linear in linears if linear.weight.requires_grad
        ]
        return undo


def _copy(source: Tensor, target: Tensor) -> None:
    """Copy rows of contiguous features, 16 bytes at a time where that is possible.

    PyTorch copies strided rows element by element, which takes twice as long for elements of 2 bytes.
    """
    tracked = source.requires_grad and torch.is_grad_enabled()
    width = source.shape[-1] * source.element_size()
    if not tracked and width % 16 == 0:
        source, target = source.contiguous().view(torch.complex128), target.view(torch.complex128)
    target.copy_(source)


def _linear_as_when_trainable(original: Callable[[Tensor], Tensor], linear: Any, states: Tensor) -> Tensor:
    """Compute a frozen projection exactly as before it was frozen.

    Hugging Face's attention projects transposed states. On the CPU PyTorch computes these differently when the weight
    needs no gradient (a product per row instead of one for all), which rounds differently. A disabled adapter must be
    the base model to the bit, so this computes what a trainable weight would give.
    """
    same_route = linear.weight.requires_grad or states.is_contiguous() or states.device.type != "cpu"
    if same_route or torch.is_autocast_enabled("cpu"):
        return original(states)
    rows = states.reshape(-1, states.shape[-1]).mm(linear.weight.t())
    return rows.view(*states.shape[:-1], -1).add_(linear.bias)

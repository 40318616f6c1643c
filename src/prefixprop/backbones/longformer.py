"""Longformer: prefix rows are global tokens, prefix keys and values are seen by local and global rows alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LongformerForSequenceClassification

from prefixprop.attention.sliding_window import PrefixedKeys, longformer_self_attention
from prefixprop.backbones.base import Backbone, PrefixSource, RobertaPositions, Undo, replace_forward
from prefixprop.backbones.bert import record_outputs, stack_key_values

WHOLE_SEQUENCE_PROJECTIONS = ("query", "key", "value", "key_global", "value_global")


class LongformerBackbone(RobertaPositions, Backbone):
    model_types: ClassVar[frozenset[str]] = frozenset({"longformer"})

    def prepend(self, rows: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        (hidden_states,), mask = args, kwargs["attention_mask"]
        # Longformer writes a mask as: negative for padding, 0 for local, positive for global tokens.
        mask = F.pad(mask, (rows.shape[1], 0), value=torch.finfo(mask.dtype).max)
        return (torch.cat([rows, hidden_states], dim=1),), dict(kwargs, attention_mask=mask)

    def keep_tokens(self, output: Any, prefix_rows: int, pooled_row: bool) -> Any:
        states = output.last_hidden_state
        tokens = states[:, prefix_rows:]
        output.last_hidden_state = torch.cat([states[:, :1], tokens], dim=1) if pooled_row else tokens
        if output.hidden_states is not None:
            output.hidden_states = tuple(state[:, prefix_rows:] for state in output.hidden_states)
        if output.attentions is not None:
            # The prefix rows come first among the rows, and first among the columns of global tokens.
            output.attentions = tuple(weights[:, :, prefix_rows:, prefix_rows:] for weights in output.attentions)
        if output.global_attentions is not None:
            kept = tuple(weights[:, :, prefix_rows:, prefix_rows:] for weights in output.global_attentions)
            output.global_attentions = kept if kept[0].shape[-1] else None
        return output

    def finish(self, output: Any, pooled_row: bool, drop_pooled_row: bool) -> Any:
        if not drop_pooled_row:
            return output
        if isinstance(output, tuple):
            return (output[0][:, 1:], *output[1:])
        output.last_hidden_state = output.last_hidden_state[:, 1:]
        return output

    def attach(self, source: PrefixSource) -> list[Undo]:
        unpad = self.encoder.register_forward_pre_hook(partial(_without_padding, source), with_kwargs=True)
        undo: list[Undo] = [unpad.remove]
        if isinstance(self.model, LongformerForSequenceClassification):
            undo.append(self.model.register_forward_pre_hook(_make_cls_global, with_kwargs=True).remove)
        for index, layer in enumerate(self.layers):
            attention = layer.attention.self
            undo.append(replace_forward(attention, partial(_prefixed_attention, source, index)))
            undo += [
                replace_forward(linear, _linear_as_when_trainable)
                for linear in (getattr(attention, name) for name in WHOLE_SEQUENCE_PROJECTIONS)
                if linear.weight.requires_grad  # as yet: peft is about to freeze it
            ]
        return undo

    def token_key_values(self, input_ids: Tensor) -> Tensor:
        outputs = record_outputs(
            [module for layer in self.layers for module in (layer.attention.self.key, layer.attention.self.value)],
            lambda: self.module(input_ids=input_ids),
        )
        # Hugging Face's attention works on [length, batch, hidden] and pads to a multiple of the window.
        return stack_key_values(
            [output[: input_ids.shape[1], 0] for output in outputs], self.config.num_attention_heads
        )


def _make_cls_global(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """Hugging Face's head makes [CLS] global by itself, but fails to when it is given embeddings."""
    embeddings = kwargs.get("inputs_embeds")
    if args or embeddings is None or kwargs.get("global_attention_mask") is not None:
        return None
    mask = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
    mask[:, 0] = 1
    return args, dict(kwargs, global_attention_mask=mask)


def _without_padding(
    source: PrefixSource, encoder: nn.Module, args: tuple, kwargs: dict
) -> tuple[tuple, dict] | None:
    """Take off the padding to whole windows that only Hugging Face's attention needs."""
    if not source.is_active():
        return None
    (hidden_states,), mask = args, kwargs["attention_mask"]
    length = hidden_states.shape[1] - kwargs["padding_len"]
    kwargs = dict(kwargs, attention_mask=mask[:, :length], padding_len=0, return_dict=True)
    return (hidden_states[:, :length],), kwargs


def _prefixed_attention(
    source: PrefixSource,
    index: int,
    original: Callable[..., tuple[Tensor, ...]],
    module: nn.Module,
    hidden_states: Tensor,
    is_index_masked: Tensor,
    is_index_global_attn: Tensor,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, ...]:
    """`LongformerSelfAttention.forward` with an active prefix; without one, Hugging Face's own to the bit."""
    if not source.is_active():
        return original(
            hidden_states,
            is_index_masked=is_index_masked,
            is_index_global_attn=is_index_global_attn,
            output_attentions=output_attentions,
            **others,
        )
    prefix = source.key_values(index, hidden_states.shape[0])
    return longformer_self_attention(
        module,
        hidden_states,
        is_index_masked,
        is_index_global_attn,
        prefix=None if prefix is None else PrefixedKeys(*prefix),
        prefix_rows=source.prefix_rows(),
        prefix_part=source.prefix_part(index),
        output_attentions=output_attentions,
    )


def _linear_as_when_trainable(original: Callable[[Tensor], Tensor], linear: Any, states: Tensor) -> Tensor:
    """Give a frozen projection the bits that it gave before it was frozen.

    Hugging Face's attention projects transposed states, and on the CPU PyTorch takes another route for these when
    the weight needs no gradient (a product per row instead of one for all), which rounds differently. A disabled
    adapter is to be the base model to the bit, so this keeps to the route of a trainable weight.
    """
    same_route = linear.weight.requires_grad or states.is_contiguous() or states.device.type != "cpu"
    if same_route or torch.is_autocast_enabled("cpu"):
        return original(states)
    rows = states.reshape(-1, states.shape[-1]).mm(linear.weight.t())
    return rows.view(*states.shape[:-1], -1).add_(linear.bias)

"""BERT, RoBERTa and models built like them: full attention, with any implementation of transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from prefixprop.attention.patch import Undo, replace_forward
from prefixprop.attention.prefix import PrefixSource, with_prefix
from prefixprop.backbones.base import EncoderBackbone, RobertaPositions, without_prefix
from prefixprop.backbones.dense_attention import mask_with_keys, mask_with_rows, split_attention


class BertBackbone(EncoderBackbone):
    """Positions from 0, as in BERT."""

    def _count_positions(self, input_ids: Tensor) -> int:
        return input_ids.shape[1]

    def prepend(self, rows: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden_states, *rest = args
        kwargs = dict(kwargs, attention_mask=mask_with_rows(kwargs.get("attention_mask"), rows.shape[1]))
        if "position_ids" in kwargs:
            # Only flash attention reads them this far down, to find packed sequences.
            kwargs["position_ids"] = None
        return (torch.cat([rows, hidden_states], dim=1), *rest), kwargs

    def keep_tokens(self, output: Any, virtual_tokens: int, pooled_row: bool) -> Any:
        output.last_hidden_state = without_prefix(output.last_hidden_state, virtual_tokens, pooled_row)
        return output

    def attach(self, source: PrefixSource) -> list[Undo]:
        return super().attach(source) + [
            replace_forward(layer.attention.self, partial(_prefixed_attention, source, index))
            for index, layer in enumerate(self.layers)
        ]


class RobertaBackbone(RobertaPositions, BertBackbone):
    """Positions from behind the padding index, as in RoBERTa."""


class PrefixKeyValues:
    """Passed as a decoder's cache: puts the prefix in front of a layer's keys and values (Eq. 2)."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return with_prefix(self.keys, keys), with_prefix(self.values, values)


def _prefixed_attention(
    source: PrefixSource,
    index: int,
    original: Callable[..., tuple[Tensor, ...]],
    module: Any,
    hidden_states: Tensor,
    attention_mask: Any = None,
    **others: Any,
) -> tuple[Tensor, ...]:
    """The forward of a layer's self-attention, with what an active prefix changes about it."""
    prefix, part, _ = source.at(index, hidden_states.shape[0])
    if part is not None:
        heads, size = module.num_attention_heads, module.attention_head_size
        query, key, value = (
            project(hidden_states).unflatten(-1, (heads, size)).transpose(1, 2)
            for project in (module.query, module.key, module.value)
        )
        dropout = module.dropout.p if module.training else 0.0
        rows, weights = split_attention(
            module, part, prefix, source.virtual_tokens(), (query, key, value), attention_mask, dropout, **others
        )
        return rows.flatten(2), weights
    if prefix is not None:
        attention_mask = mask_with_keys(attention_mask, prefix[0].shape[2])
        others["past_key_values"] = PrefixKeyValues(*prefix)
    return original(hidden_states, attention_mask=attention_mask, **others)

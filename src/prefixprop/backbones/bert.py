"""BERT, RoBERTa and the models built like them: full attention, any attention implementation of transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from prefixprop.attention.install import PrefixSource, Undo, replace_forward
from prefixprop.attention.prefix import PrefixPart
from prefixprop.backbones.base import Backbone, RobertaPositions, without_prefix

FOR_DECODERS = ("past_key_values", "encoder_hidden_states")


class BertBackbone(Backbone):
    """Positions from 0, as in BERT."""

    model_types: ClassVar[frozenset[str]] = frozenset({"bert", "electra", "ernie"})

    @property
    def first_position(self) -> int:
        return 0

    def _count_positions(self, input_ids: Tensor) -> int:
        return input_ids.shape[1]

    def prepend(self, rows: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden_states, *rest = args
        kwargs = dict(kwargs, attention_mask=_mask_with_rows(kwargs.get("attention_mask"), rows.shape[1]))
        if "position_ids" in kwargs:
            # Only flash attention reads them this far down, to find packed sequences.
            kwargs["position_ids"] = None
        return (torch.cat([rows, hidden_states], dim=1), *rest), kwargs

    def keep_tokens(self, output: Any, prefix_rows: int, pooled_row: bool) -> Any:
        output.last_hidden_state = without_prefix(output.last_hidden_state, prefix_rows, pooled_row)
        return output

    def finish(self, output: Any, pooled_row: bool, drop_pooled_row: bool) -> Any:
        # transformers records states and attentions inside the encoder, where the prefix still is.
        tokens = output[0].shape[1] - int(pooled_row)
        if isinstance(output, tuple):
            first, *others = output
            return (
                first[:, -tokens:] if drop_pooled_row else first,
                *(_last_tokens(value, tokens) for value in others),
            )
        for name in ("hidden_states", "attentions"):
            if output.get(name) is not None:
                output[name] = _last_tokens(output[name], tokens)
        if drop_pooled_row:
            output.last_hidden_state = output.last_hidden_state[:, -tokens:]
        return output

    def attach(self, source: PrefixSource) -> list[Undo]:
        return [
            replace_forward(layer.attention.self, partial(_prefixed_attention, source, index))
            for index, layer in enumerate(self.layers)
        ]


class RobertaBackbone(RobertaPositions, BertBackbone):
    """Positions from behind the padding index, as in RoBERTa."""

    model_types: ClassVar[frozenset[str]] = frozenset(
        {"roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm"}
    )


class PrefixKeyValues:
    """Stands where a decoder's cache would: puts the prefix in front of a layer's keys and values (Eq. 2)."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        batch = keys.shape[0]
        return (
            torch.cat([self.keys.to(keys.dtype).expand(batch, -1, -1, -1), keys], dim=2),
            torch.cat([self.values.to(values.dtype).expand(batch, -1, -1, -1), values], dim=2),
        )


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
    prefix = source.key_values(index, hidden_states.shape[0])
    part = source.prefix_part(index)
    if part is not None:
        return _split_attention(module, part, prefix, source.prefix_rows(), hidden_states, attention_mask, **others)
    if prefix is not None:
        attention_mask = _mask_with_keys(attention_mask, prefix[0].shape[2])
        others["past_key_values"] = PrefixKeyValues(*prefix)
    return original(hidden_states, attention_mask=attention_mask, **others)


def _split_attention(
    module: Any,
    part: PrefixPart,
    prefix: tuple[Tensor, Tensor] | None,
    prefix_rows: int,
    hidden_states: Tensor,
    attention_mask: Any,
    **others: Any,
) -> tuple[Tensor, ...]:
    """Eq. 3: softmax over the keys that are no prefix, by the model's own attention function, plus `part`."""
    if attention_mask is not None and not (isinstance(attention_mask, Tensor) and attention_mask.dim() == 4):
        raise ValueError("A kernel needs attn_implementation='sdpa' or 'eager'; load the model with one of these.")
    heads, size = module.num_attention_heads, module.attention_head_size
    query, key, value = (
        project(hidden_states).unflatten(-1, (heads, size)).transpose(1, 2)
        for project in (module.query, module.key, module.value)
    )
    if prefix is None:
        prefix = key[:, :, :prefix_rows], value[:, :, :prefix_rows]
        key, value = key[:, :, prefix_rows:], value[:, :, prefix_rows:]
        attention_mask = None if attention_mask is None else attention_mask[..., prefix_rows:]
    dropout = module.dropout.p if module.training else 0.0
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, _eager_attention)
    others = {name: option for name, option in others.items() if name not in FOR_DECODERS}
    rows, weights = attend(module, query, key, value, attention_mask, dropout=dropout, scaling=size**-0.5, **others)
    rows = rows + part(query, *prefix, dropout).transpose(1, 2)
    return rows.flatten(2), weights


def _eager_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    scores = query @ key.transpose(-1, -2) * scaling
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(dim=-1)
    weights = F.dropout(weights, dropout)
    return (weights @ value).transpose(1, 2), weights


def _mask_with_keys(mask: Any, count: int) -> Any:
    """The attention mask with `count` keys in front that every row sees."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise ValueError(
            "Prefix methods do not work with attn_implementation='flex_attention'; load the model with 'sdpa', "
            "'eager' or flash attention."
        )
    # Boolean masks say what is seen, integer ones (flash attention) likewise, float ones are added to the scores.
    return F.pad(mask, (count, 0), value=0.0 if mask.is_floating_point() else 1)


def _mask_with_rows(mask: Any, count: int) -> Any:
    """The attention mask with `count` rows in front that see, and are seen by, every row."""
    mask = _mask_with_keys(mask, count)
    if mask is None or mask.dim() < 4:
        return mask
    # A prefix row sees each key that any row sees: all but the padding.
    seen = mask.amax(dim=2, keepdim=True) if mask.is_floating_point() else mask.any(dim=2, keepdim=True)
    return torch.cat([seen.expand(-1, -1, count, -1), mask], dim=2)


def _last_tokens(value: Any, tokens: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_last_tokens(item, tokens) for item in value)
    if isinstance(value, Tensor) and value.dim() == 3:
        return value[:, -tokens:]
    if isinstance(value, Tensor) and value.dim() == 4:
        return value[..., -tokens:, -tokens:]
    return value

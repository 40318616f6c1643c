"""What a prefix changes in the attention of transformers: masks, keys and values, and the split of Eq. 3."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import eager_attention_forward

from prefixprop.attention.prefix import PrefixPart

FOR_DECODERS = ("past_key_values", "encoder_hidden_states")


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, dropout: float, **others: Any
) -> tuple[Tensor, Tensor]:
    """The model's own attention function, as [batch, rows, heads, size], and its weights if it has any."""
    function = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager_attention_forward)
    others = {name: option for name, option in others.items() if name not in FOR_DECODERS}
    scaling = query.shape[-1] ** -0.5
    return function(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)


def split_attention(
    module: Any,
    part: PrefixPart,
    prefix: tuple[Tensor, Tensor] | None,
    virtual_tokens: int,
    projected: tuple[Tensor, Tensor, Tensor],
    attention_mask: Any,
    dropout: float,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Eq. 3: the model's own attention without the prefix, plus `part`.

    The prefix is `prefix`, trained keys and values, or the first `virtual_tokens` of those that are `projected`.
    """
    if attention_mask is not None and not (isinstance(attention_mask, Tensor) and attention_mask.dim() == 4):
        raise ValueError("A kernel needs attn_implementation='sdpa' or 'eager'; load the model with one of these.")
    query, key, value = projected
    if prefix is None:
        prefix = key[:, :, :virtual_tokens], value[:, :, :virtual_tokens]
        key, value = key[:, :, virtual_tokens:], value[:, :, virtual_tokens:]
        attention_mask = None if attention_mask is None else attention_mask[..., virtual_tokens:]
    rows, weights = attend(module, query, key, value, attention_mask, dropout, **others)
    return rows + part(query, *prefix, dropout).transpose(1, 2), weights


def mask_with_keys(mask: Any, count: int) -> Any:
    """The attention mask with `count` keys in front that every row sees."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise ValueError(
            "Prefix methods do not work with attn_implementation='flex_attention'; load the model with 'sdpa', "
            "'eager' or flash attention."
        )
    # Boolean and integer masks (flash attention) mark what is visible; float masks are added to the scores.
    return F.pad(mask, (count, 0), value=0.0 if mask.is_floating_point() else 1)


def mask_with_rows(mask: Any, count: int) -> Any:
    """The attention mask with `count` rows in front that see, and are seen by, every row."""
    mask = mask_with_keys(mask, count)
    if mask is None or mask.dim() < 4:
        return mask
    return torch.cat([_seen_by_any(mask).expand(-1, -1, count, -1), mask], dim=2)


def with_first_rows_everywhere(mask: Any, count: int) -> Any:
    """The mask of a sliding window with its first `count` rows made to see, and to be seen by, every row."""
    if mask is None:
        return None
    return mask_with_rows(mask[:, :, count:, count:], count)


def _seen_by_any(mask: Tensor) -> Tensor:
    """What a prefix row sees: each key that any row sees, which is all but the padding."""
    return mask.amax(dim=2, keepdim=True) if mask.is_floating_point() else mask.any(dim=2, keepdim=True)

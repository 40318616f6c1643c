"""Rows of global tokens: they see everything, through projections of their own.

Few rows need no projected keys and values of the whole sequence: q · (W_k x + b_k) = (W_kᵀ q) · x + q · b_k, so each
query is taken back through W_k once and meets the hidden states themselves; likewise Σ p (W_v x + b_v) is
W_v (Σ p x) + b_v Σ p. That saves two of the layer's projections.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prefixprop.attention.dropout import dropout_weights, wide
from prefixprop.attention.hooks import is_watched
from prefixprop.attention.pattern import AttentionPattern, GlobalTokens, as_bias
from prefixprop.attention.prefix import PrefixedKeys, PrefixPart, for_batch, outside_softmax


def attend_globally(
    module: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    tokens: GlobalTokens,
    prefix: PrefixedKeys | None,
    prefix_part: PrefixPart | None,
    dropout: float,
    exact: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention of the global tokens, [batch, globals, hidden], and its weights on the sequence.

    `exact` computes it in float32 where states have 16 bits, as the Triton kernels do: cheap for few rows alone.
    """
    heads = module.num_heads
    rows = hidden_states.gather(1, tokens.index[..., None].expand(-1, -1, hidden_states.shape[2]))
    query = split_heads(module.query_global(rows), heads)
    in_softmax = prefix if prefix_part is None else None
    few = query.shape[2] * heads <= hidden_states.shape[2]
    if few and is_plain(module.key_global) and is_plain(module.value_global):
        asked = query.to(wide(query.dtype)) if exact else query
        # Inside autocast, products would have 16 bits again.
        with torch.autocast(query.device.type, enabled=False) if exact else nullcontext():
            output, weights = _absorbed(module, hidden_states, asked, pattern, in_softmax, dropout)
        output = output.to(query.dtype)
    else:
        output, weights = _projected(module, hidden_states, query, pattern, in_softmax, dropout)
    if prefix_part is not None:
        front = hidden_states[:, : pattern.rows_outside_softmax]
        key, value = (split_heads(project(front), heads) for project in (module.key_global, module.value_global))
        output = output + prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    return output.transpose(1, 2).flatten(2), weights


def _absorbed(
    module: Any,
    hidden_states: Tensor,
    query: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    batch, heads, count, size = query.shape
    query = query / math.sqrt(size)
    # Cast as a projection would be, under autocast too.
    matrices = [linear.weight.to(query.dtype).unflatten(0, (heads, size)) for linear in _key_value(module)]
    key_bias, value_bias = (linear.bias.to(query.dtype).view(heads, 1, size) for linear in _key_value(module))
    states = hidden_states.to(query.dtype)

    back = (query @ matrices[0]).flatten(1, 2)  # [batch, heads * globals, hidden]
    scores = (back @ states.transpose(1, 2)).view(batch, heads, count, -1)
    scores = scores + (query * key_bias).sum(dim=-1, keepdim=True)
    scores = scores + as_bias(~pattern.is_unseen[:, None, None, :], query.dtype)
    if prefix is not None:
        front = query @ for_batch(prefix.keys, query).transpose(-1, -2)
        scores = torch.cat([front, scores], dim=-1)
    weights = dropout_weights(scores.softmax(dim=-1, dtype=wide(query.dtype)).to(query.dtype), dropout)
    kept = weights if prefix is None else weights[..., prefix.keys.shape[2] :]

    mixed = (kept.flatten(1, 2) @ states).view(batch, heads, count, -1)
    output = mixed @ matrices[1].transpose(-1, -2) + kept.sum(dim=-1, keepdim=True) * value_bias
    if prefix is not None:
        output = output + weights[..., : prefix.keys.shape[2]] @ for_batch(prefix.values, query)
    return output, kept


def _projected(
    module: Any,
    hidden_states: Tensor,
    query: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    key, value = (split_heads(linear(hidden_states), query.shape[1]) for linear in _key_value(module))
    visible, prefix_keys = ~pattern.is_unseen[:, None, None, :], 0
    if prefix is not None:
        prefix_keys = prefix.keys.shape[2]
        key = torch.cat([for_batch(prefix.keys, key), key], dim=2)
        value = torch.cat([for_batch(prefix.values, value), value], dim=2)
        visible = F.pad(visible, (prefix_keys, 0), value=True)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + as_bias(visible, query.dtype)
    weights = dropout_weights(scores.softmax(dim=-1, dtype=wide(query.dtype)).to(query.dtype), dropout)
    return weights @ value, weights[..., prefix_keys:]


def _key_value(module: Any) -> tuple[Any, Any]:
    return module.key_global, module.value_global


class Affine(NamedTuple):
    """An `nn.Linear` of tensors that are no parameters."""

    weight: Tensor
    bias: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight, self.bias)


def is_plain(linear: nn.Module | Affine) -> bool:
    """Nothing but its weight and bias: no adapter around it, and nobody who waits for it to be called."""
    if type(linear) is nn.Linear:
        return not is_watched(linear)
    return type(linear) is Affine


def split_heads(rows: Tensor, heads: int) -> Tensor:
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)

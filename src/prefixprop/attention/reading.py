"""Attention of virtual tokens that only read: to all of a text, and to the other virtual tokens of their own prefix.

Rows of several prefixes come one prefix after the other. With q a row, k and v the text's keys and values, and k', v'
those of the row's own prefix:

    softmax(q · cat(k', k) / √d) · cat(v', v)

The text has no gradient. The backend `triton` has a kernel for all of it. On a CPU the text's part is PyTorch's fused
attention, which also returns the log-sum-exp of its scores: two attentions over different keys are merged by these
exactly, and in backward each needs nothing of the other but the merged output and log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prefixprop.attention.backends import Backend
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import PrefixedKeys
from prefixprop.attention.sliding_window import (
    KeyValue,
    attend_unprojected,
    dropout_weights,
    is_plain,
    split_heads,
    wide,
)

_FUSED = torch.ops.aten
LONGEST = 128  # virtual tokens of a prefix that the kernels read with


def read_text(
    rows: Tensor,
    states: Tensor,
    projections: Sequence[Any],
    pattern: AttentionPattern,
    heads: int,
    readers: int,
    first_only: bool,
    dropout: float,
    backend: Backend,
) -> Tensor:
    """Attention [batch, queries, width] of the virtual tokens `rows` of `readers` prefixes to a text and themselves.

    `projections` are those of queries, keys and values. `first_only`: only the first token of each prefix asks.
    """
    length, width = rows.shape[1] // readers, rows.shape[2]
    if backend.attend_to_text is not None and all(map(is_plain, projections)) and length <= LONGEST:
        weight, bias = (torch.cat([getattr(linear, name) for linear in projections]) for name in ("weight", "bias"))
        qkv, kv = F.linear(rows, weight, bias), F.linear(states, weight[width:], bias[width:])
        return backend.attend_to_text(qkv, kv, pattern, heads, readers, first_only, dropout)
    to_query, to_key, to_value = projections
    query = split_heads(to_query(rows[:, ::length] if first_only else rows), heads)
    own = PrefixedKeys(split_heads(to_key(rows), heads), split_heads(to_value(rows), heads))
    attended = read_states(query, states, (to_key, to_value), pattern, own, readers, dropout)
    return attended.transpose(1, 2).flatten(2)


def read_states(
    query: Tensor,
    states: Tensor,
    key_value: KeyValue,
    pattern: AttentionPattern,
    own: PrefixedKeys,
    readers: int,
    dropout: float,
) -> Tensor:
    """Attention of queries [batch, heads, rows, size] of `readers` prefixes to `states` and to their `own` keys.

    `key_value` projects the states; where rows are few it is applied to the queries instead.
    """
    few = query[..., 0].numel() <= len(states) * states.shape[2] and all(map(is_plain, key_value))
    if few:
        return attend_unprojected(query, states, key_value, pattern, own, dropout, readers)[0]
    key, value = (split_heads(project(states), query.shape[1]) for project in key_value)
    return read_keys(query, key, value, pattern, own, readers, dropout)


def read_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: AttentionPattern,
    own: PrefixedKeys,
    readers: int,
    dropout: float = 0.0,
) -> Tensor:
    """The same for projected keys and values of the text, [batch, or 1 if all read it, heads, tokens, size] each."""
    key, value = (each.detach().expand(len(query), -1, -1, -1) for each in (key, value))
    bias = pattern.prepared(_bias, query.dtype)
    if not dropout and query.device.type == "cpu":
        return _Read.apply(query, key, value, bias, *own, readers)
    of_own = _own_scores(query, own.keys, readers).flatten(2, 3)
    of_text = query @ key.mT / query.shape[-1] ** 0.5 + (0.0 if bias is None else bias)
    weights = dropout_weights(torch.cat([of_own, of_text], dim=-1).softmax(dim=-1).to(query.dtype), dropout)
    on_own, on_text = weights.split([of_own.shape[-1], of_text.shape[-1]], dim=-1)
    return on_text @ value + (_blocks(on_own, readers) @ _blocks(own.values, readers)).flatten(2, 3)


def _bias(pattern: AttentionPattern, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores of the text's tokens, [batch, 1, 1, tokens], if there is any padding."""
    return None if pattern.unpadded_rows is not None else pattern.bias(dtype)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        own_key: Tensor,
        own_value: Tensor,
        readers: int,
    ) -> Tensor:
        of_text, lse_text = _FUSED._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias)
        scores = _own_scores(query, own_key, readers)
        lse = torch.logaddexp(lse_text, scores.logsumexp(dim=-1).flatten(2))
        weights = (scores - _blocks(lse, readers)[..., None]).exp()
        output = of_text * (lse_text - lse).exp()[..., None]
        output += (weights @ _blocks(own_value, readers).to(weights.dtype)).flatten(2, 3)
        output = output.to(query.dtype)
        ctx.readers = readers
        ctx.save_for_backward(query, key, value, bias, own_key, own_value, output, lse)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, own_key, own_value, output, lse = ctx.saved_tensors
        gradient = gradient.contiguous()
        tensors = (gradient, query, key, value, output, lse)
        dq = _FUSED._scaled_dot_product_flash_attention_for_cpu_backward(*tensors, 0.0, False, attn_mask=bias)[0]
        weights = (_own_scores(query, own_key, ctx.readers) - _blocks(lse, ctx.readers)[..., None]).exp()
        q, k, v, do = (_blocks(rows, ctx.readers).to(lse.dtype) for rows in (query, own_key, own_value, gradient))
        delta = (gradient * output).sum(dim=-1, dtype=lse.dtype)
        ds = weights * (do @ v.mT - _blocks(delta, ctx.readers)[..., None]) / query.shape[-1] ** 0.5
        dq = (dq.to(lse.dtype) + (ds @ k).flatten(2, 3)).to(query.dtype)
        dk, dv = ((rows.flatten(2, 3)).to(query.dtype) for rows in (ds.mT @ q, weights.mT @ do))
        return dq, None, None, None, dk, dv, None


def _blocks(rows: Tensor, readers: int) -> Tensor:
    """[batch, heads, rows, ...] with the rows of each prefix apart."""
    return rows.unflatten(2, (readers, -1))


def _own_scores(query: Tensor, own_key: Tensor, readers: int) -> Tensor:
    """[batch, heads, readers, j, j], in at least 32 bits."""
    q, k = (_blocks(rows, readers).to(wide(query.dtype)) for rows in (query, own_key))
    return q @ k.mT / query.shape[-1] ** 0.5

"""Attention of virtual tokens that only read: to all of a text, and to the other virtual tokens of their own prefix.

Rows of several prefixes come one prefix after the other. With q a row, k and v the text's keys and values, and k', v'
those of the row's own prefix:

    softmax(q · cat(k', k) / √d) · cat(v', v)

The text's part is PyTorch's fused attention, which also returns the log-sum-exp of its scores. Two attentions over
different keys are merged by these exactly, and in backward each needs nothing of the other but the merged output and
log-sum-exp. The text has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prefixprop.attention.backends import Backend
from prefixprop.attention.dropout import dropout_weights, wide
from prefixprop.attention.pattern import AttentionPattern, as_bias
from prefixprop.attention.prefix import PrefixedKeys
from prefixprop.attention.sliding_window import KeyValue, attend_to_states, is_plain, split_heads

_FUSED = torch.ops.aten
LONGEST = 128  # virtual tokens of a prefix that the kernels read with
_ALIGNED = 16  # CUDA's fused attention reads so many numbers of a bias at once


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
    asking = rows[:, ::length] if first_only else rows
    query, *own = (
        split_heads(project(x), heads) for project, x in zip(projections, (asking, rows, rows), strict=True)
    )
    attended = read_states(
        query, states, (projections[1], projections[2]), pattern, PrefixedKeys(*own), readers, dropout
    )
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
        return attend_to_states(query, states, key_value, pattern, own, dropout, readers=readers)[0]
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
    """The same for projected keys and values of the text, [batch, heads, tokens, size] each.

    A batch that reads one text has its keys and values once, [1, heads, tokens, size].
    """
    key, value = (each.expand(len(query), -1, -1, -1) for each in (key, value))
    if dropout:
        return _with_dropout(query, key, value, pattern, own, readers, dropout)
    bias = pattern.prepared(_bias, query.dtype) if pattern.unpadded_rows is None else None
    return _Read.apply(query, key.detach(), value.detach(), bias, *own, readers)


def _with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: AttentionPattern,
    own: PrefixedKeys,
    readers: int,
    dropout: float,
) -> Tensor:
    """The same with dropout of the weights, which are written out."""
    of_own = _own_scores(query, own.keys, readers).flatten(2, 3)
    of_text = query @ key.mT / query.shape[-1] ** 0.5 + as_bias(~pattern.is_unseen[:, None, None, :], query.dtype)
    weights = dropout_weights(torch.cat([of_own, of_text], dim=-1).softmax(dim=-1).to(query.dtype), dropout)
    on_own, on_text = weights.split([of_own.shape[-1], of_text.shape[-1]], dim=-1)
    return on_text @ value + (_blocks(on_own, readers) @ _blocks(own.values, readers)).flatten(2, 3)


def _bias(pattern: AttentionPattern, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of the text's tokens, [batch, 1, 1, tokens]."""
    visible = ~pattern.is_unseen[:, None, None, :]
    length = visible.shape[-1]
    return as_bias(F.pad(visible, (0, -length % _ALIGNED)), dtype)[..., :length]


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
        of_text, lse_text, ctx.noise = _text_forward(query, key, value, bias)
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
        dq = _text_backward(gradient, query, key, value, bias, output, lse, ctx.noise).to(lse.dtype)
        weights = (_own_scores(query, own_key, ctx.readers) - _blocks(lse, ctx.readers)[..., None]).exp()
        q, k, v, do = (_blocks(rows, ctx.readers).to(lse.dtype) for rows in (query, own_key, own_value, gradient))
        delta = (gradient * output).sum(dim=-1, dtype=lse.dtype)
        ds = weights * (do @ v.mT - _blocks(delta, ctx.readers)[..., None]) / query.shape[-1] ** 0.5
        dq = (dq + (ds @ k).flatten(2, 3)).to(query.dtype)
        dk, dv = ((rows.flatten(2, 3)).to(query.dtype) for rows in (ds.mT @ q, weights.mT @ do))
        return dq, None, None, None, dk, dv, None


def _blocks(rows: Tensor, readers: int) -> Tensor:
    """[batch, heads, rows, ...] with the rows of each prefix apart."""
    return rows.unflatten(2, (readers, -1))


def _own_scores(query: Tensor, own_key: Tensor, readers: int) -> Tensor:
    """[batch, heads, readers, j, j], in at least 32 bits."""
    q, k = (_blocks(rows, readers).to(wide(query.dtype)) for rows in (query, own_key))
    return q @ k.mT / query.shape[-1] ** 0.5


def _text_forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Any]:
    """Attention to the text, its log-sum-exp [batch, heads, rows], and what its backward needs besides."""
    if query.device.type != "cuda":
        output, lse = _FUSED._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias)
        return output, lse, None
    if _is_flash(query, bias):
        output, lse, *noise = _FUSED._scaled_dot_product_flash_attention(query, key, value)
        return output, lse, noise[:6]
    everywhere = None if bias is None else bias.expand(-1, query.shape[1], query.shape[2], -1)
    output, lse, *noise = _FUSED._scaled_dot_product_efficient_attention(query, key, value, everywhere, True)
    return output, lse[:, :, : query.shape[2]], (lse.shape[2], *noise)


def _is_flash(query: Tensor, bias: Tensor | None) -> bool:
    """Whether CUDA's flash attention can be used; the other one takes padding and 32 bits."""
    return bias is None and query.dtype in (torch.bfloat16, torch.float16)


def _text_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    output: Tensor,
    lse: Tensor,
    noise: Any,
) -> Tensor:
    """The gradient of the queries through the text; `output` and `lse` are those of all keys."""
    if query.device.type != "cuda":
        tensors = (gradient, query, key, value, output, lse)
        return _FUSED._scaled_dot_product_flash_attention_for_cpu_backward(*tensors, 0.0, False, attn_mask=bias)[0]
    if _is_flash(query, bias):
        cum_q, cum_k, most_q, most_k, *seed = noise
        tensors = (gradient, query, key, value, output, lse)
        return _FUSED._scaled_dot_product_flash_attention_backward(
            *tensors, cum_q, cum_k, most_q, most_k, 0.0, False, *seed
        )[0]
    rows, *seed = noise
    everywhere = None if bias is None else bias.expand(-1, query.shape[1], query.shape[2], -1)
    padded = F.pad(lse, (0, rows - lse.shape[2]), value=float("inf"))
    return _FUSED._scaled_dot_product_efficient_attention_backward(
        gradient, query, key, value, everywhere, output, padded, *seed, 0.0, [True, False, False, False]
    )[0]

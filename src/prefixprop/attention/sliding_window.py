"""Longformer's self-attention in plain PyTorch, with optional prefix keys and values (Eq. 2).

It computes the numbers of Hugging Face's. Queries are cut into blocks of half a window; each block attends to the
keys it can see (prefix, global tokens, its neighbourhood) in one call of PyTorch's fused attention. Any length works:
nothing is padded to a multiple of the window.

Global tokens see everything, through projections of their own. Where they are few, the keys and values of the whole
sequence need not be projected for them: q · (W_k x + b_k) = (W_kᵀ q) · x + q · b_k, so each query is multiplied with
W_k once and meets the hidden states themselves; likewise Σ p (W_v x + b_v) is W_v (Σ p x) + b_v Σ p.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prefixprop.attention.patch import has_hooks
from prefixprop.attention.pattern import AttentionPattern, GlobalTokens, cut_windows, join_blocks
from prefixprop.attention.prefix import PrefixedKeys, PrefixPart, for_batch, outside_softmax, with_prefix

KeyValue = tuple[Any, Any]  # the linear layers that make keys and values
LEVELS = 2**16  # of the random numbers of dropout on a CPU


def longformer_self_attention(
    module: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, ...]:
    """What `LongformerSelfAttention.forward` returns, for hidden states [batch, length, hidden] of any length.

    `module` is Hugging Face's own. With a `prefix_part` the prefix (`prefix`, or the pattern's first rows) is in no
    row's softmax, and the part is added instead (Eq. 3). With `output_attentions` the weights follow in Hugging
    Face's format; those on `prefix` are left out of it.
    """
    heads = module.num_heads
    dropout = module.dropout if module.training else 0.0
    in_softmax = prefix if prefix_part is None else None

    query, key, value = (
        split_heads(project(hidden_states), heads) for project in (module.query, module.key, module.value)
    )
    reach = module.one_sided_attn_window_size
    output, local_weights = local_rows(query, key, value, reach, pattern, in_softmax, dropout, output_attentions)
    if prefix_part is not None:
        output = output + prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    # Hugging Face gives padding rows no attention at all.
    output = output.transpose(1, 2).flatten(2).masked_fill(pattern.is_masked[..., None], 0.0)

    global_weights = None
    if pattern.tokens is not None:
        rows, global_weights = attend_globally(
            module, hidden_states, pattern, pattern.tokens, prefix, prefix_part, dropout
        )
        index = pattern.tokens.index[..., None].expand_as(rows)
        scattered = torch.zeros_like(output).scatter(1, index, rows)
        output = torch.where(pattern.is_global[..., None], scattered, output)

    if local_weights is None:
        return (output,)
    # Rows outside the softmax are global tokens, and keep their columns, without weight.
    local_weights = F.pad(local_weights, (pattern.rows_outside_softmax, 0))
    # Rows that are padding or global have no local attention to show.
    nothing = (pattern.is_masked | pattern.is_global)[:, None, :, None]
    local_weights = local_weights.masked_fill(nothing, 0.0).transpose(1, 2)
    return (output, local_weights) if global_weights is None else (output, local_weights, global_weights)


def local_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    reach: int,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None,
    dropout: float,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Every row's attention to the prefix, the global tokens and its `reach` neighbours on either side."""
    batch, _, length, _ = query.shape
    prefix_keys = 0 if prefix is None else prefix.keys.shape[2]
    blocks = pattern.blocks(reach, prefix_keys, query.dtype, whole_grid=need_weights)
    tokens = pattern.key_tokens

    def seen_by_blocks(rows: Tensor, front: Tensor | None) -> Tensor:
        parts = [cut_windows(rows, blocks.size, blocks.margin, blocks.count)]
        if tokens is not None:
            parts.insert(0, tokens.gather(rows).repeat_interleave(blocks.count, dim=0))
        if front is not None:
            of_blocks = front if len(front) == 1 else front.repeat_interleave(blocks.count, dim=0)
            parts.insert(0, for_batch(of_blocks, parts[-1]))
        return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]

    output, weights = _attend(
        cut_windows(query, blocks.size, 0, blocks.count),
        seen_by_blocks(key, None if prefix is None else prefix.keys),
        seen_by_blocks(value, None if prefix is None else prefix.values),
        blocks.bias,
        dropout,
        need_weights,
    )
    output = join_blocks(output, batch, length)
    if weights is None:
        return output, None
    before = prefix_keys + (0 if tokens is None else tokens.index.shape[1])
    # In a block, row r sees its neighbours in columns r to r + 2 * reach.
    offset = torch.arange(2 * reach + 1, device=query.device)
    band = torch.arange(blocks.size, device=query.device)[:, None] + offset
    window = weights[..., before:]
    window = window.gather(-1, band.expand(*window.shape[:2], -1, -1))
    weights = torch.cat([weights[..., prefix_keys:before], window], dim=-1)
    return output, join_blocks(weights, batch, length)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    if need_weights:
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias
        weights = dropout_weights(scores.softmax(dim=-1, dtype=wide(query.dtype)).to(query.dtype), dropout)
        return weights @ value, weights
    if dropout > 0 and query.device.type == "cpu":
        return attend_with_dropout(query, key, value, bias, dropout), None
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout), None


def attend_to_all(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None,
    dropout: float,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of rows that see the prefix and all tokens but padding, [batch, heads, rows, size]."""
    bias = pattern.bias(query.dtype)
    if prefix is not None:
        key, value = with_prefix(prefix.keys, key), with_prefix(prefix.values, value)
        bias = F.pad(bias, (prefix.keys.shape[2], 0))
    return _attend(query, key, value, bias, dropout, need_weights)


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

    `exact` computes it in float32 where states have 16 bits, as the Triton kernels do; for a few rows that is cheap.
    """
    heads, key_value = module.num_heads, (module.key_global, module.value_global)
    rows = hidden_states.gather(1, tokens.index[..., None].expand(-1, -1, hidden_states.shape[2]))
    query = split_heads(module.query_global(rows), heads)
    in_softmax = prefix if prefix_part is None else None
    output, weights = attend_to_states(query, hidden_states, key_value, pattern, in_softmax, dropout, exact)
    if prefix_part is not None:
        front = hidden_states[:, : pattern.rows_outside_softmax]
        key, value = (split_heads(project(front), heads) for project in key_value)
        output = output + prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    return output.transpose(1, 2).flatten(2), weights


def attend_to_states(
    query: Tensor,
    hidden_states: Tensor,
    key_value: KeyValue,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None,
    dropout: float,
    exact: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention of queries [batch, heads, rows, size] to the prefix and to all tokens, and its weights on the tokens.

    `key_value` projects the tokens' states; where the queries are few it is applied to them instead.
    """
    few = query.shape[1] * query.shape[2] <= hidden_states.shape[2]
    if not (few and all(map(is_plain, key_value))):
        key, value = (split_heads(linear(hidden_states), query.shape[1]) for linear in key_value)
        output, weights = attend_to_all(query, key, value, pattern, prefix, dropout, need_weights=True)
        assert weights is not None
        return output, weights[..., -hidden_states.shape[1] :]
    asked = query.to(wide(query.dtype)) if exact else query
    # Autocast would compute the products in 16 bits again.
    with torch.autocast(query.device.type, enabled=False) if exact else nullcontext():
        output, weights = attend_unprojected(asked, hidden_states, key_value, pattern, prefix, dropout)
    return output.to(query.dtype), weights


def attend_unprojected(
    query: Tensor,
    hidden_states: Tensor,
    key_value: KeyValue,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None,
    dropout: float,
    readers: int = 1,
) -> tuple[Tensor, Tensor]:
    """The same with `key_value` applied to the queries; those of each of `readers` see a prefix of their own."""
    batch, heads, count, size = query.shape
    query = query / math.sqrt(size)
    # Cast as a projection would be, under autocast too.
    matrices = [linear.weight.to(query.dtype).unflatten(0, (heads, size)) for linear in key_value]
    key_bias, value_bias = (linear.bias.to(query.dtype).view(heads, 1, size) for linear in key_value)
    states = hidden_states.to(query.dtype)

    back = (query @ matrices[0]).flatten(1, 2)  # [batch, heads * globals, hidden]
    scores = (back @ states.transpose(1, 2)).view(batch, heads, count, -1)
    scores = scores + (query * key_bias).sum(dim=-1, keepdim=True)
    scores = scores + pattern.bias(query.dtype)
    if prefix is not None:
        keys, values = (for_batch(each, query).unflatten(2, (readers, -1)) for each in prefix)
        front = query.unflatten(2, (readers, -1)) @ keys.transpose(-1, -2)
        scores = torch.cat([front.flatten(2, 3), scores], dim=-1)
    weights = dropout_weights(scores.softmax(dim=-1, dtype=wide(query.dtype)).to(query.dtype), dropout)
    kept = weights if prefix is None else weights[..., keys.shape[3] :]

    mixed = (kept.flatten(1, 2) @ states).view(batch, heads, count, -1)
    output = mixed @ matrices[1].transpose(-1, -2) + kept.sum(dim=-1, keepdim=True) * value_bias
    if prefix is not None:
        on_prefix = weights[..., : keys.shape[3]].unflatten(2, (readers, -1))
        output = output + (on_prefix @ values).flatten(2, 3)
    return output, kept


def is_plain(linear: nn.Module) -> bool:
    """Whether it is nothing but a weight and a bias: no adapter around it, and no hooks on it."""
    return type(linear) is nn.Linear and not has_hooks(linear)


def split_heads(rows: Tensor, heads: int) -> Tensor:
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


# --- dropout on a CPU -----------------------------------------------------------------------------------------------
# PyTorch draws one number per attention probability, on one thread, and goes through the whole score matrix for every
# operation. Here four probabilities share one 64-bit number, and each block of rows is finished before the next.


def draw_kept(shape: tuple[int, ...] | torch.Size, probability: float) -> tuple[Tensor, float]:
    """A boolean mask of what dropout keeps, and the factor for what is kept.

    Drops with the multiple of 2^-16 nearest to `probability`. The factor is the exact inverse of what is kept, so the
    expected value is exact.
    """
    threshold = min(max(round(probability * LEVELS), 1), LEVELS - 1)
    count = math.prod(shape)
    random_words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    lanes = random_words.view(torch.int16)[:count].view(shape)
    return lanes >= threshold - LEVELS // 2, LEVELS / (LEVELS - threshold)  # int16 starts at -2^15


def attend_with_dropout(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, probability: float) -> Tensor:
    """softmax(q kᵀ/√d + bias), dropped out, times v; [batch, heads, rows, size], a bias for all heads."""
    kept, keep_scale = draw_kept((*query.shape[:3], key.shape[2]), probability)
    return _DroppedAttention.apply(query, key, value, bias.expand(len(query), -1, -1, -1), kept, keep_scale)


def dropout_weights(weights: Tensor, probability: float) -> Tensor:
    """`F.dropout` of probabilities that are wanted for themselves."""
    if weights.device.type != "cpu" or probability == 0:
        return F.dropout(weights, probability)
    kept, keep_scale = draw_kept(weights.shape, probability)
    return torch.where(kept, weights * keep_scale, 0.0)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type to compute probabilities in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


class _DroppedAttention(torch.autograd.Function):
    """One example (or block of rows) after the other; backward computes the probabilities again."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, kept: Tensor, keep_scale: float
    ) -> Tensor:
        output = torch.empty_like(query)
        for index in range(len(query)):
            weights = _probabilities(query[index], key[index], bias[index]).mul_(kept[index]).mul_(keep_scale)
            torch.matmul(weights.to(value.dtype), value[index], out=output[index])
        ctx.save_for_backward(query, key, value, bias, kept)
        ctx.keep_scale = keep_scale
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, kept = ctx.saved_tensors
        scale = 1 / math.sqrt(query.shape[-1])
        dq, dk, dv = (torch.empty_like(rows) for rows in (query, key, value))
        for index in range(len(query)):
            weights = _probabilities(query[index], key[index], bias[index])
            dropped = (weights * kept[index]).mul_(ctx.keep_scale).to(value.dtype)
            torch.matmul(dropped.transpose(-1, -2), gradient[index], out=dv[index])
            dp = (gradient[index] @ value[index].transpose(-1, -2)).to(weights.dtype)
            dp.mul_(kept[index]).mul_(ctx.keep_scale)
            # Softmax: dS = P (dP - Σ P dP)
            product = dp.mul_(weights)
            ds = product.sub_(weights.mul_(product.sum(dim=-1, keepdim=True))).to(query.dtype)
            torch.matmul(ds, key[index], out=dq[index]).mul_(scale)
            torch.matmul(ds.transpose(-1, -2), query[index], out=dk[index]).mul_(scale)
        return dq, dk, dv, None, None, None


def _probabilities(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    scores = (query @ key.transpose(-1, -2)).to(wide(query.dtype))
    return scores.mul_(1 / math.sqrt(query.shape[-1])).add_(bias).softmax(dim=-1)

"""Longformer's self-attention in plain PyTorch, with optional prefix keys and values (Eq. 2).

The numbers are Hugging Face's; what differs is how they are reached. Queries are cut into blocks of half a window;
each block meets the keys it can see (prefix, global tokens, its neighbourhood) in one call of PyTorch's fused
attention. Any length works, so nothing has to be padded to a multiple of the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# (query, prefix keys, prefix values, dropout) -> what is added to the rows' attention
PrefixPart = Callable[[Tensor, Tensor, Tensor, float], Tensor]


class PrefixedKeys(NamedTuple):
    """Trained keys and values in front of everybody's own: [batch or 1, heads, j, head size] each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class GlobalTokens:
    """Where the global tokens of each example are: [batch, most of any example], padded at the end."""

    index: Tensor
    valid: Tensor

    @classmethod
    def find(cls, is_global: Tensor) -> GlobalTokens | None:
        most = int(is_global.sum(dim=1).max())
        if most == 0:
            return None
        order = torch.sort(is_global.to(torch.int8), dim=1, descending=True, stable=True).indices[:, :most]
        return cls(order, is_global.gather(1, order))

    def gather(self, rows: Tensor) -> Tensor:
        """[batch, heads, length, size] -> the global tokens' rows."""
        return rows.gather(2, self.index[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[3]))


def longformer_self_attention(
    module: Any,
    hidden_states: Tensor,
    is_masked: Tensor,
    is_global: Tensor,
    prefix: PrefixedKeys | None = None,
    prefix_rows: int = 0,
    prefix_part: PrefixPart | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, ...]:
    """What `LongformerSelfAttention.forward` returns, for hidden states [batch, length, hidden] of any length.

    `module` is Hugging Face's own; `is_masked` and `is_global` are [batch, length]. With a `prefix_part` the prefix
    (`prefix`, or the first `prefix_rows` rows) leaves every row's softmax, and the part is added instead (Eq. 3).
    With `output_attentions` the weights follow in Hugging Face's format; those on `prefix` are left out of it.
    """
    heads = module.num_heads
    dropout = module.dropout if module.training else 0.0
    tokens = key_tokens = GlobalTokens.find(is_global)
    is_hidden = is_masked  # as a key
    in_softmax = prefix
    if prefix_part is not None:
        in_softmax = None
        is_prefix = torch.arange(is_masked.shape[1], device=is_masked.device) < prefix_rows
        is_hidden, key_tokens = is_masked | is_prefix, GlobalTokens.find(is_global & ~is_prefix)

    query, key, value = (
        _split_heads(project(hidden_states), heads) for project in (module.query, module.key, module.value)
    )
    output, local_weights = _local_rows(
        query,
        key,
        value,
        reach=module.one_sided_attn_window_size,
        seen_locally=~(is_masked | is_global),
        tokens=key_tokens,
        prefix=in_softmax,
        dropout=dropout,
        need_weights=output_attentions,
    )
    if prefix_part is not None:
        output = output + prefix_part(query, *_prefix_of(key, value, prefix, prefix_rows), dropout)
    # Hugging Face gives padding rows no attention at all.
    output = output.transpose(1, 2).flatten(2).masked_fill(is_masked[..., None], 0.0)

    global_weights = None
    if tokens is not None:
        rows, global_weights = _global_rows(
            module, hidden_states, is_hidden, tokens, prefix, prefix_rows, prefix_part, dropout, output_attentions
        )
        place = tokens.index[..., None].expand_as(rows)
        output = torch.where(is_global[..., None], torch.zeros_like(output).scatter(1, place, rows), output)

    if local_weights is None:
        return (output,)
    if prefix_part is not None:
        # The prefix rows are global tokens, and keep their columns: without weight, as they are not in the softmax.
        local_weights = F.pad(local_weights, (prefix_rows, 0))
    # Rows that are padding or global have no local attention to show.
    local_weights = local_weights.masked_fill((is_masked | is_global)[:, None, :, None], 0.0).transpose(1, 2)
    return (output, local_weights) if global_weights is None else (output, local_weights, global_weights)


def _local_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    reach: int,
    seen_locally: Tensor,
    tokens: GlobalTokens | None,
    prefix: PrefixedKeys | None,
    dropout: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Every row's attention to the prefix, the global tokens and its `reach` neighbours on either side."""
    batch, _, length, _ = query.shape
    # Short sequences fit one block that sees everything; recorded weights are cut out of a regular grid.
    single = length <= 3 * reach and not need_weights
    block = length if single else reach
    margin = 0 if single else reach
    blocks = math.ceil(length / block)

    offsets = torch.arange(block + 2 * margin, device=query.device) - margin
    distance = offsets[None, :] - torch.arange(block, device=query.device)[:, None]
    seen = _windows(seen_locally[:, None, :, None], block, margin, blocks)[..., 0]
    visible = (distance.abs() <= reach) & seen.unflatten(0, (batch, blocks))  # [batch, blocks, block, window]

    keys, values, shown = [], [], [visible]
    keys.append(_windows(key, block, margin, blocks))
    values.append(_windows(value, block, margin, blocks))
    if tokens is not None:
        keys.insert(0, _for_each_block(tokens.gather(key), blocks))
        values.insert(0, _for_each_block(tokens.gather(value), blocks))
        shown.insert(0, tokens.valid[:, None, None, :].expand(-1, blocks, block, -1))
    if prefix is not None:
        keys.insert(0, _for_each_block(_for_batch(prefix.keys, key), blocks))
        values.insert(0, _for_each_block(_for_batch(prefix.values, value), blocks))
        shown.insert(0, visible.new_ones(batch, blocks, block, prefix.keys.shape[2]))

    output, weights = _attend(
        _windows(query, block, 0, blocks),
        torch.cat(keys, dim=2),
        torch.cat(values, dim=2),
        torch.cat(shown, dim=-1).flatten(0, 1)[:, None],
        dropout,
        need_weights,
    )
    output = _join_blocks(output, batch, length)
    if weights is None:
        return output, None
    skipped = 0 if prefix is None else prefix.keys.shape[2]
    globals_ = 0 if tokens is None else tokens.index.shape[1]
    # In a block, row r sees its neighbours in columns r to r + 2 * reach.
    band = torch.arange(block, device=query.device)[:, None] + torch.arange(2 * reach + 1, device=query.device)
    window = weights[..., skipped + globals_ :]
    window = window.gather(-1, band.expand(*window.shape[:2], -1, -1))
    weights = torch.cat([weights[..., skipped : skipped + globals_], window], dim=-1)
    return output, _join_blocks(weights, batch, length)


def _global_rows(
    module: Any,
    hidden_states: Tensor,
    is_hidden: Tensor,
    tokens: GlobalTokens,
    prefix: PrefixedKeys | None,
    prefix_rows: int,
    prefix_part: PrefixPart | None,
    dropout: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """The global tokens' attention to everything, through the `_global` projections: [batch, globals, hidden]."""
    heads = module.num_heads
    rows = hidden_states.gather(1, tokens.index[..., None].expand(-1, -1, hidden_states.shape[2]))
    query = _split_heads(module.query_global(rows), heads)
    key = _split_heads(module.key_global(hidden_states), heads)
    value = _split_heads(module.value_global(hidden_states), heads)
    visible = ~is_hidden[:, None, None, :]
    added = None if prefix_part is None else prefix_part(query, *_prefix_of(key, value, prefix, prefix_rows), dropout)
    skipped = 0
    if prefix is not None and prefix_part is None:
        skipped = prefix.keys.shape[2]
        key = torch.cat([_for_batch(prefix.keys, key), key], dim=2)
        value = torch.cat([_for_batch(prefix.values, value), value], dim=2)
        visible = F.pad(visible, (skipped, 0), value=True)
    output, weights = _attend(query, key, value, visible, dropout, need_weights)
    output = output if added is None else output + added
    return output.transpose(1, 2).flatten(2), None if weights is None else weights[..., skipped:]


def _attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    # A finite bias, unlike a boolean mask, leaves rows that see nothing (padding) finite.
    bias = torch.zeros(visible.shape, dtype=query.dtype, device=query.device)
    bias = bias.masked_fill(~visible, torch.finfo(query.dtype).min)
    if not need_weights:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout), None
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias
    weights = F.dropout(scores.float().softmax(dim=-1).to(query.dtype), dropout)
    return weights @ value, weights


def _split_heads(rows: Tensor, heads: int) -> Tensor:
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def _windows(rows: Tensor, block: int, margin: int, blocks: int) -> Tensor:
    """[batch, heads, length, size] -> [batch * blocks, heads, block + 2 * margin, size], zeros outside."""
    length = rows.shape[2]
    if blocks == 1 and margin == 0 and block == length:
        return rows
    padded = F.pad(rows, (0, 0, margin, blocks * block - length + margin))
    windows = padded.unfold(2, block + 2 * margin, block)  # [batch, heads, blocks, size, window]
    return windows.permute(0, 2, 1, 4, 3).flatten(0, 1)


def _for_each_block(rows: Tensor, blocks: int) -> Tensor:
    return rows[:, None].expand(-1, blocks, -1, -1, -1).flatten(0, 1)


def _prefix_of(key: Tensor, value: Tensor, prefix: PrefixedKeys | None, prefix_rows: int) -> tuple[Tensor, Tensor]:
    return (key[:, :, :prefix_rows], value[:, :, :prefix_rows]) if prefix is None else (prefix.keys, prefix.values)


def _for_batch(prefix: Tensor, rows: Tensor) -> Tensor:
    return prefix.to(rows.dtype).expand(rows.shape[0], -1, -1, -1)


def _join_blocks(rows: Tensor, batch: int, length: int) -> Tensor:
    """[batch * blocks, heads, block, size] -> [batch, heads, length, size]."""
    return rows.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :length]

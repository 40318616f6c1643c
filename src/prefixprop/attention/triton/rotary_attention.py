"""ModernBERT's attention on a GPU: windows with the Triton kernels, full attention with PyTorch's flash attention.

Flash attention reads packed documents, without padding; packing is part of the rotary kernel and costs nothing.
Documents that are known to have the same length use cuDNN's attention instead, which is faster but has no padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from prefixprop.attention.modernbert import Angles
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart, LayerPrefix, PrefixedKeys, PrefixPart, as_rows, outside_softmax
from prefixprop.attention.sliding_window import attend_to_all
from prefixprop.attention.triton.block import Attention
from prefixprop.attention.triton.launch_attention import Setting
from prefixprop.attention.triton.prefix_part import can_fuse
from prefixprop.attention.triton.rope import Move, Rope
from prefixprop.attention.triton.shared import MASKED, run

try:
    from torch.nn.attention import varlen

    varlen_attn: Any = varlen.varlen_attn
except ImportError:  # before PyTorch 2.10
    varlen_attn = None

DENSE = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]  # in this order
STEP = 64  # cuDNN is used for multiples of this: it makes a plan for each length, in a tenth of a second


class Packing(NamedTuple):
    """The place of each token among packed documents (-1: none); each document follows its prefix keys."""

    places: Tensor  # [batch, length]
    prefix_places: Tensor  # [batch * j]
    ends: Tensor  # [batch + 1]: of the documents, from 0
    longest: int  # possible length of a document
    all_have: int | None  # length of all documents, if it is known that none has padding
    tokens: int  # of these

    @classmethod
    def of(cls, pattern: AttentionPattern, prefix_keys: int) -> Packing:
        real = ~pattern.is_masked
        counted = real.cumsum(dim=1, dtype=torch.int32)
        ends = F.pad((counted[:, -1] + prefix_keys).cumsum(dim=0, dtype=torch.int32), (1, 0))
        starts = ends[:-1, None]
        places = torch.where(real, starts + (prefix_keys - 1) + counted, -1)
        prefix_places = starts + torch.arange(prefix_keys, device=real.device)
        known = pattern.unpadded_rows
        all_have = None if known is None else known + prefix_keys
        tokens = (known or 0) - (pattern.front_rows or 0)
        return cls(places, prefix_places.flatten(), ends, real.shape[1] + prefix_keys, all_have, tokens)


def rotary_attention(
    projected: Tensor,
    angles: Angles,
    heads: int,
    reach: int | None,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    fused_part: FusedPart | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """As the function of this name in `prefixprop.attention.modernbert`."""
    projected = projected.contiguous()
    has_flash = reach is None and has_flash_attention(projected, heads, dropout)
    if has_flash and prefix_part is None:
        return packed_attention(projected, angles, heads, pattern, prefix)

    batch, length, width = projected.shape
    in_softmax = prefix if prefix_part is None else None
    front = as_rows(None if reach is None else in_softmax, projected[..., : width // 3])
    qkv = run(Rope.in_order(angles, heads, projected, front.shape[1]), projected, front)
    query, key, value = qkv[: batch * length].view(batch, length, 3, heads, -1).transpose(1, 3).unbind(2)
    outside, size = pattern.rows_outside_softmax, query.shape[-1]
    text = None
    if has_flash:
        text = packed_attention(projected, angles, heads, pattern.prepared(_text_alone), None)
    elif reach is None:
        text, _ = attend_to_all(query[:, :, outside:], key, value, pattern, in_softmax, dropout)
        text = F.pad(text.transpose(1, 2).flatten(2), (0, 0, outside, 0))
    given = LayerPrefix(prefix, prefix_part, fused_part)
    is_fused = can_fuse(given, pattern, size, qkv)
    output = text
    if outside or text is None:
        given = given if is_fused else given._replace(fused=None)
        attention = kernel_attention(heads, size, reach or 0, pattern, given, dropout, text is not None)
        output = run(attention, qkv, None, text, attention.alpha)
    assert output is not None
    if prefix_part is None or is_fused:
        return output
    part = prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    return output + part.transpose(1, 2).flatten(2)


def kernel_attention(
    heads: int,
    size: int,
    reach: int,
    pattern: AttentionPattern,
    prefix: LayerPrefix,
    dropout: float,
    has_text: bool = False,
) -> Attention:
    """How the kernels attend; the part outside the softmax (Eq. 3) only if `prefix` has a fused one."""
    front = prefix.key_values if prefix.part is None else None
    prefix_keys = 0 if front is None else front.keys.shape[2]
    setting = Setting.of(pattern, heads, size, reach, prefix_keys, dropout)
    part_kind = None if prefix.fused is None else pattern.prepared(_without_global_rows)
    return Attention(setting, prefix.fused, part_kind, has_text=has_text)


def _without_global_rows(pattern: AttentionPattern) -> Tensor:
    """The kinds of rows for Eq. 3, without global rows: prefix rows share the projections of all others."""
    return pattern.is_masked.to(torch.int8) * MASKED.value


def _text_alone(pattern: AttentionPattern) -> AttentionPattern:
    """The same pattern for the rows that are keys, without the prefix."""
    text = AttentionPattern.with_rows_in_front(pattern.is_unseen, 0)
    text.unpadded_rows = pattern.unpadded_rows
    return text


def packed_attention(
    projected: Tensor, angles: Angles, heads: int, pattern: AttentionPattern, prefix: PrefixedKeys | None
) -> Tensor:
    """Attention of all rows to all rows and the prefix."""
    front = as_rows(prefix, projected[..., : projected.shape[2] // 3])
    packing = pattern.prepared(Packing.of, front.shape[1])
    cosine, sine = (each.contiguous() for each in angles)
    batch, length, _ = projected.shape
    rope = Rope(cosine, sine, heads, (batch, length), packing.places, packing.prefix_places)
    qkv = run(rope, projected, front)
    if packing.all_have is not None and has_dense_attention(qkv, packing.tokens):
        output = dense_attention(qkv, heads, batch, packing.all_have)
        if output.shape[1] == length:
            return output
        return run(Move(packing.places, batch * output.shape[1]), output.flatten(0, 1))
    query, key, value = qkv.unflatten(-1, (3, heads, -1)).unbind(1)
    # Only the device knows how many rows there are in all; what follows the last document is unused.
    output = varlen_attn(query, key, value, packing.ends, packing.ends, packing.longest, packing.longest)
    return run(Move(packing.places, len(output)), output.flatten(1))


def dense_attention(qkv: Tensor, heads: int, documents: int, length: int) -> Tensor:
    """Full attention within each document, [documents, length, width]."""
    if len(qkv) > documents * length:
        qkv = qkv[: documents * length]
    query, key, value = qkv.view(documents, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    with sdpa_kernel(DENSE, set_priority=True):
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def has_flash_attention(rows: Tensor, heads: int, dropout: float) -> bool:
    """Whether PyTorch's flash attention supports packed documents of this kind."""
    size = rows.shape[-1] // (3 * heads)
    fits = rows.dtype in (torch.float16, torch.bfloat16) and size % 8 == 0 and size <= 256
    return varlen_attn is not None and rows.is_cuda and fits and not dropout


def has_dense_attention(rows: Tensor, tokens: int) -> bool:
    """Whether cuDNN is faster for documents of this many tokens, and the length is likely to come again."""
    return tokens % STEP == 0 and torch.cuda.get_device_capability(rows.device) >= (9, 0)

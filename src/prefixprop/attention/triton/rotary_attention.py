"""Attention with rotary positions: windows on the Triton kernels, all rows on PyTorch's flash attention.

Flash attention reads packed documents, without their padding; packing costs nothing, as rows are rotated anyway.
Documents that are known to have one length take cuDNN's instead, which is faster and knows of no padding.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart, PrefixedKeys, PrefixPart, outside_softmax
from prefixprop.attention.rope import Rotation, attend_to_all
from prefixprop.attention.triton.prefix_part import fits
from prefixprop.attention.triton.rope import move, rotate
from prefixprop.attention.triton.self_attention import as_rows, attend, kernel_arguments
from prefixprop.attention.triton.split_attention import split_attention

try:
    from torch.nn.attention import varlen

    varlen_attn: Any = varlen.varlen_attn
except ImportError:  # before PyTorch 2.10
    varlen_attn = None

DENSE = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]  # in this order
STEP = 64  # of lengths: cuDNN makes a plan for each, in a tenth of a second


class Packing(NamedTuple):
    """Where each token stands among the documents without padding (-1: nowhere), each behind its prefix keys."""

    places: Tensor  # [batch, length]
    prefix_places: Tensor  # [batch * j]
    ends: Tensor  # [batch + 1]: of the documents, from 0
    longest: int  # that a document might be
    all_have: int | None  # rows, if it is known that none is padding
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
    rotation: Rotation,
    heads: int,
    reach: int | None,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    fused_part: FusedPart | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """What the function of this name in `rotary` returns."""
    projected = projected.contiguous()
    has_flash = reach is None and has_flash_attention(projected, heads, dropout)
    if has_flash and prefix_part is None:
        return packed_attention(projected, rotation, heads, pattern, prefix)

    batch, length, width = projected.shape
    in_softmax = prefix if prefix_part is None else None
    front = as_rows(None if reach is None else in_softmax, projected[..., : width // 3])
    behind = torch.arange(batch * length, batch * (length + front.shape[1]), device=projected.device)
    near = rotate(projected, *_angles(rotation), front, behind[:0].int(), behind, heads)
    query, key, value = near[: batch * length].view(batch, length, 3, heads, -1).transpose(1, 3).unbind(2)
    outside = pattern.rows_outside_softmax
    output = None
    if has_flash:
        output = packed_attention(projected, rotation, heads, pattern.prepared(_text_alone), None)
    elif reach is None:
        output = attend_to_all(query[:, :, outside:], key, value, pattern, in_softmax, dropout)
        output = F.pad(output.transpose(1, 2).flatten(2), (0, 0, outside, 0))
    arguments = partial(kernel_arguments, heads, query.shape[-1], reach or 0, pattern, in_softmax, dropout)
    if outside:
        fused_part = fused_part if fits(outside, query.shape[-1], near) else None
        output = split_attention(near, output, fused_part, pattern, arguments())
    elif output is None:
        output = attend(near, None, *arguments())
    if prefix_part is None or (outside and fused_part is not None):
        return output
    part = prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    return output + part.transpose(1, 2).flatten(2)


def _text_alone(pattern: AttentionPattern) -> AttentionPattern:
    """The same for the rows that are keys, as if there were no others."""
    text = AttentionPattern.with_rows_in_front(pattern.is_unseen, 0)
    text.unpadded_rows = pattern.unpadded_rows
    return text


def packed_attention(
    projected: Tensor, rotation: Rotation, heads: int, pattern: AttentionPattern, prefix: PrefixedKeys | None
) -> Tensor:
    """Attention of all rows to all rows and the prefix."""
    front = as_rows(prefix, projected[..., : projected.shape[2] // 3])
    packing = pattern.prepared(Packing.of, front.shape[1])
    near = rotate(projected, *_angles(rotation), front, packing.places, packing.prefix_places, heads)
    if packing.all_have is not None and has_dense_attention(near, packing.tokens):
        output = dense_attention(near, heads, len(projected), packing.all_have)
        return output if output.shape[1] == projected.shape[1] else move(output.flatten(0, 1), packing.places)
    query, key, value = near.unflatten(-1, (3, heads, -1)).unbind(1)
    # How many rows there are altogether is known on the device alone: what is behind the last document is unused.
    output = varlen_attn(query, key, value, packing.ends, packing.ends, packing.longest, packing.longest)
    return move(output.flatten(1), packing.places)


def dense_attention(near: Tensor, heads: int, documents: int, length: int) -> Tensor:
    """Attention [documents, length, width] of the first rows, each document's to all of its own."""
    if len(near) > documents * length:
        near = near[: documents * length]
    query, key, value = near.view(documents, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    with sdpa_kernel(DENSE, set_priority=True):
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def _angles(rotation: Rotation) -> Rotation:
    cosine, sine = rotation
    return cosine.contiguous(), sine.contiguous()


def has_flash_attention(rows: Tensor, heads: int, dropout: float) -> bool:
    """Whether PyTorch's flash attention takes packed documents of this kind."""
    size = rows.shape[-1] // (3 * heads)
    fits = rows.dtype in (torch.float16, torch.bfloat16) and size % 8 == 0 and size <= 256
    return varlen_attn is not None and rows.is_cuda and fits and not dropout


def has_dense_attention(rows: Tensor, tokens: int) -> bool:
    """Whether cuDNN is the faster one for documents of so many tokens each, and they are likely to come again."""
    return tokens % STEP == 0 and torch.cuda.get_device_capability(rows.device) >= (9, 0)

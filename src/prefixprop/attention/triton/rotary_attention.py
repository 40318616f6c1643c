"""ModernBERT's attention on a GPU: windows with the Triton kernels, full attention with PyTorch's flash attention.

Flash attention reads packed documents, without padding; packing is part of the rotary kernel and costs nothing.
Documents that are known to have the same length use cuDNN's attention instead, which is faster but has no padding.
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
from prefixprop.attention.rope import Rope, attend_to_all
from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.launch_attention import DropoutSeeds, Shape
from prefixprop.attention.triton.pattern import DevicePattern
from prefixprop.attention.triton.prefix_part import Rows, add_gradients, add_part, fits
from prefixprop.attention.triton.rope import apply_rope, move
from prefixprop.attention.triton.self_attention import as_rows, attend, kernel_arguments
from prefixprop.attention.triton.tiles import MASKED
from prefixprop.attention.triton.triton_kernel import function

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
    rope: Rope,
    heads: int,
    reach: int | None,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    fused_part: FusedPart | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """As the function of this name in `prefixprop.attention.rope`."""
    projected = projected.contiguous()
    has_flash = reach is None and has_flash_attention(projected, heads, dropout)
    if has_flash and prefix_part is None:
        return packed_attention(projected, rope, heads, pattern, prefix)

    batch, length, width = projected.shape
    in_softmax = prefix if prefix_part is None else None
    front = as_rows(None if reach is None else in_softmax, projected[..., : width // 3])
    behind = torch.arange(batch * length, batch * (length + front.shape[1]), device=projected.device)
    qkv = apply_rope(projected, *_angles(rope), front, behind[:0].int(), behind, heads)
    query, key, value = qkv[: batch * length].view(batch, length, 3, heads, -1).transpose(1, 3).unbind(2)
    outside = pattern.rows_outside_softmax
    output = None
    if has_flash:
        output = packed_attention(projected, rope, heads, pattern.prepared(_text_alone), None)
    elif reach is None:
        output = attend_to_all(query[:, :, outside:], key, value, pattern, in_softmax, dropout)
        output = F.pad(output.transpose(1, 2).flatten(2), (0, 0, outside, 0))
    arguments = partial(kernel_arguments, heads, query.shape[-1], reach or 0, pattern, in_softmax, dropout)
    if outside:
        fused_part = fused_part if fits(outside, query.shape[-1], qkv) else None
        output = split_attention(qkv, output, fused_part, pattern, arguments())
    elif output is None:
        output = attend(qkv, None, *arguments())
    if prefix_part is None or (outside and fused_part is not None):
        return output
    part = prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    return output + part.transpose(1, 2).flatten(2)


def _text_alone(pattern: AttentionPattern) -> AttentionPattern:
    """The same pattern for the rows that are keys, without the prefix."""
    text = AttentionPattern.with_rows_in_front(pattern.is_unseen, 0)
    text.unpadded_rows = pattern.unpadded_rows
    return text


def packed_attention(
    projected: Tensor, rope: Rope, heads: int, pattern: AttentionPattern, prefix: PrefixedKeys | None
) -> Tensor:
    """Attention of all rows to all rows and the prefix."""
    front = as_rows(prefix, projected[..., : projected.shape[2] // 3])
    packing = pattern.prepared(Packing.of, front.shape[1])
    qkv = apply_rope(projected, *_angles(rope), front, packing.places, packing.prefix_places, heads)
    if packing.all_have is not None and has_dense_attention(qkv, packing.tokens):
        output = dense_attention(qkv, heads, len(projected), packing.all_have)
        return output if output.shape[1] == projected.shape[1] else move(output.flatten(0, 1), packing.places)
    query, key, value = qkv.unflatten(-1, (3, heads, -1)).unbind(1)
    # Only the device knows how many rows there are in all; what follows the last document is unused.
    output = varlen_attn(query, key, value, packing.ends, packing.ends, packing.longest, packing.longest)
    return move(output.flatten(1), packing.places)


def dense_attention(qkv: Tensor, heads: int, documents: int, length: int) -> Tensor:
    """Full attention within each document, [documents, length, width]."""
    if len(qkv) > documents * length:
        qkv = qkv[: documents * length]
    query, key, value = qkv.view(documents, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    with sdpa_kernel(DENSE, set_priority=True):
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def _angles(rope: Rope) -> Rope:
    cosine, sine = rope
    return cosine.contiguous(), sine.contiguous()


def has_flash_attention(rows: Tensor, heads: int, dropout: float) -> bool:
    """Whether PyTorch's flash attention supports packed documents of this kind."""
    size = rows.shape[-1] // (3 * heads)
    fits = rows.dtype in (torch.float16, torch.bfloat16) and size % 8 == 0 and size <= 256
    return varlen_attn is not None and rows.is_cuda and fits and not dropout


def has_dense_attention(rows: Tensor, tokens: int) -> bool:
    """Whether cuDNN is faster for documents of this many tokens, and the length is likely to come again."""
    return tokens % STEP == 0 and torch.cuda.get_device_capability(rows.device) >= (9, 0)


def split_attention(
    qkv: Tensor, text: Tensor | None, part: FusedPart | None, pattern: AttentionPattern, arguments: tuple
) -> Tensor:
    """Attention's rows [batch, length, width] from `qkv` (see tiles), in which tokens stand in their order.

    Without `part`, the prefix's part is left out. In layers of full attention, `text` is the output of the text's own
    rows, and only those of the prefix are computed here; gradients of `text` in their place must not be used.
    `arguments` are those of `kernel_arguments`.
    """
    trained = None if part is None or part.trained is None else part.trained.contiguous()
    fixed = None if part is None else part._replace(trained=None)
    run = _split if torch.is_grad_enabled() else _split_forward
    return run(qkv, text, trained, pattern.prepared(_without_global_rows), (fixed,), *arguments)[0]


def _without_global_rows(pattern: AttentionPattern) -> Tensor:
    """The kinds of rows for Eq. 3, without global rows: prefix rows share the projections of all others."""
    return pattern.is_masked.to(torch.int8) * MASKED.value


def _read_split(qkv: Tensor, kind: Tensor, arguments: tuple) -> tuple[DevicePattern, DropoutSeeds, Shape, Rows]:
    pattern, seeds, shape = DevicePattern(*arguments[:5]), DropoutSeeds(*arguments[5:7]), Shape(*arguments[7:])
    return pattern, seeds, shape, Rows(qkv, qkv, pattern._replace(kind=kind), seeds, shape)


def _split_forward(
    qkv: Tensor, text: Tensor | None, trained: Tensor | None, kind: Tensor, fixed: tuple, *arguments: Any
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The output, and for backward that of the softmax alone, with its lse."""
    pattern, seeds, shape, prefix_inputs = _read_split(qkv, kind, arguments)
    others = None if text is None else text.clone(memory_format=torch.contiguous_format)
    rows, lse = launch_attention.forward(qkv, None, pattern, seeds, shape, others)
    (part,) = fixed
    summed = rows if part is None else add_part(rows, prefix_inputs, part._replace(trained=trained))
    return summed, (rows, lse)


def _split_keep(ctx: Any, inputs: tuple, output: tuple[Tensor, tuple[Tensor, Tensor]]) -> None:
    qkv, text, trained, kind, ctx.fixed, *arguments = inputs
    ctx.has_text, ctx.numbers = text is not None, arguments[7:]
    ctx.save_for_backward(qkv, trained, kind, *output[1], *arguments[:7])


def _split_backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    qkv, trained, kind, rows, lse, *tensors = ctx.saved_tensors
    pattern, seeds, shape, prefix_inputs = _read_split(qkv, kind, (*tensors, *ctx.numbers))
    gradient = gradient.contiguous()
    if ctx.has_text:
        dqkv = launch_attention.backward_of_global_rows(gradient, rows, lse, qkv, pattern, seeds, shape)
    else:
        dqkv = launch_attention.backward(gradient, rows, lse, qkv, None, pattern, seeds, shape)[0]
    (part,), d_alpha = ctx.fixed, None
    if part is not None:
        results = (dqkv, dqkv[:, shape.heads * shape.size :], dqkv)
        d_alpha = add_gradients(gradient, prefix_inputs, part._replace(trained=trained), results)
    return (dqkv, gradient if ctx.has_text else None, d_alpha, *(None,) * (2 + len(tensors) + len(ctx.numbers)))


_split = function(_split_forward, _split_keep, _split_backward)

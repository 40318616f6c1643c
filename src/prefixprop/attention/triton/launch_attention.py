"""The inputs of the attention kernels, and their launches with tile sizes for the device."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.pattern import ALL_ROWS, AttentionPattern
from prefixprop.attention.triton import attention_backward, attention_forward
from prefixprop.attention.triton.shared import (
    ALWAYS_VISIBLE,
    FACTS,
    FIRST,
    GLOBAL,
    LAST,
    LEADING,
    LOCAL,
    MASKED,
    TOKENS,
    TritonKernel,
    draw_dropout_seeds,
    levels,
)

SHARES = 8  # programs that share an example's global rows where these are projected
# Programs that share the global rows, or the always visible keys, of an example's head: as many as keep a GPU busy
# with all examples and heads. More would have no work.
MOST_SHARES, PROGRAMS = 16, 1536


class DevicePattern(NamedTuple):
    """The attention pattern as the kernels read it: computed on the device, so that nothing waits for it.

    `tokens` [batch, length + 1] lists each example's global tokens at its front; [batch, 0] if there are none.
    `always_visible_keys` are the keys that every local row sees, as indices into the rows of all examples: first the
    prefix keys, which are extra rows behind all tokens (Eq. 2), then the global tokens. `facts` [batch, 5] are counts
    and bounds, in the order that shared.py names.
    """

    kind: Tensor  # [batch, length]: LOCAL, GLOBAL or MASKED
    tokens: Tensor
    always_visible_keys: Tensor
    facts: Tensor
    arrivals: Tensor  # [lanes, shares]: counters of programs that share work; kernels reset them to zero

    @classmethod
    def of(cls, pattern: AttentionPattern, prefix_keys: int, heads: int) -> DevicePattern:
        masked, everywhere = pattern.is_masked.contiguous(), pattern.is_global.contiguous()
        (batch, length), outside = masked.shape, pattern.rows_outside_softmax
        # The interpreter runs programs one after the other.
        shares = 3 if INTERPRETED else min(MOST_SHARES, max(1, PROGRAMS // (batch * heads)))
        made = cls(
            masked.new_empty(batch, length, dtype=torch.int8),
            masked.new_empty(batch, length + 1, dtype=torch.int32),
            masked.new_empty(batch, prefix_keys + length, dtype=torch.int32),
            masked.new_empty(batch, FACTS.value, dtype=torch.int32),
            masked.new_zeros(batch * heads, shares, dtype=torch.int32),
        )
        _LIST_TOKENS(
            (batch,),
            (masked.view(torch.int8), everywhere.view(torch.int8), *made[:4]),
            (batch, length, prefix_keys, outside),
            BLOCK=16 if INTERPRETED else 1024,
        )
        return made._replace(tokens=made.tokens[:, :0]) if pattern.front_rows == 0 else made

    @property
    def has_tokens(self) -> bool:
        """Whether there may be global tokens; for some models it is known that there are none."""
        return self.tokens.shape[1] > 0


class Shape(NamedTuple):
    """Sizes that kernels are compiled for (heads, size), and those that they get at each launch."""

    heads: int
    size: int
    reach: int
    prefix: int  # keys (Eq. 2)
    outside: int  # prefix rows that are in no softmax (Eq. 3)
    dropout: float

    @property
    def width(self) -> int:
        return self.heads * self.size


class DropoutSeeds(NamedTuple):
    """Seeds of dropout's masks: one for each row of each head, and one for each row of the buffers."""

    rows: Tensor
    columns: Tensor


class Setting(NamedTuple):
    """What attention is computed with besides projections."""

    pattern: DevicePattern
    seeds: DropoutSeeds
    shape: Shape

    @classmethod
    def of(
        cls, pattern: AttentionPattern, heads: int, size: int, reach: int, prefix_keys: int, dropout: float
    ) -> Setting:
        on_device = pattern.prepared(DevicePattern.of, prefix_keys, heads)
        batch, length = pattern.is_masked.shape
        counts = (batch * heads * length, batch * (length + prefix_keys))
        seeds = DropoutSeeds(*draw_dropout_seeds(counts, on_device.arrivals, dropout))
        shape = Shape(heads, size, reach, prefix_keys, pattern.rows_outside_softmax, float(dropout))
        return cls(on_device, seeds, shape)


class AttentionInputs(NamedTuple):
    """Projections (see `shared`), and what attention is computed with besides.

    Without `kv_global`, global rows see the keys and values that all rows see.
    """

    qkv: Tensor
    kv_global: Tensor | None
    pattern: DevicePattern
    seeds: DropoutSeeds
    shape: Shape

    @property
    def keys_of_global_rows(self) -> Tensor:
        return self.qkv[:, self.shape.width :] if self.kv_global is None else self.kv_global


class AttentionGradients(NamedTuple):
    """Of the projections. Without `kv_global`, everything is in the first, and the others are parts of it."""

    dqkv: Tensor
    dkv_global: Tensor
    dq_global: Tensor  # of the global rows' queries; nothing elsewhere


def forward(given: AttentionInputs, others: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention of every row [batch, length, hidden], and the log-sum-exp of its scores.

    `others` holds the rows that are not global if they were computed elsewhere; the global rows are written into it.
    """
    shape, (batch, length) = given.shape, given.pattern.kind.shape
    output = given.qkv.new_empty(batch, length, shape.width) if others is None else others
    lse = given.qkv.new_empty(batch, shape.heads, length, dtype=torch.float32)
    # Tensors of backward are not used here; any address will do.
    if others is None:
        _local_rows(given, output, lse, lse, output, output, backward=False)
    if given.pattern.has_tokens:
        _global_rows(given, output, lse, lse, output, output, backward=False)
    return output, lse


def backward(
    gradient: Tensor, output: Tensor, lse: Tensor, given: AttentionInputs, grad_rows: int = ALL_ROWS
) -> AttentionGradients:
    """If only `grad_rows` rows at the front learn, which are global, there is nothing in dqkv but the keys and values
    that are listed, and without any nothing in dq_global."""
    qkv, kv_global, pattern, _, shape = given
    dqkv = torch.empty_like(qkv)
    if kv_global is None:
        dkv_global, dq_global = dqkv[:, shape.width :], dqkv
    else:
        make = torch.empty_like if pattern.has_tokens else torch.zeros_like  # then no kernel writes there
        dkv_global, dq_global = make(kv_global), make(output)
    if shape.prefix:  # prefix rows have no queries
        dqkv[pattern.kind.numel() :, : shape.width] = 0
    delta = torch.empty_like(lse)
    if grad_rows == ALL_ROWS:
        _local_rows(given, output, lse, delta, gradient, dqkv, backward=True)
    else:
        _row_deltas(output, gradient, delta, shape)
    if grad_rows and pattern.has_tokens:
        _global_rows(given, output, lse, delta, gradient, dq_global, backward=True)
    if grad_rows == ALL_ROWS:
        _window_keys_backward(given, gradient, lse, delta, dqkv)
    if pattern.has_tokens or shape.prefix:
        _always_visible_keys_backward(given, gradient, lse, delta, dqkv)
    if pattern.has_tokens:
        _global_keys_backward(given, gradient, lse, delta, dkv_global, add=kv_global is None)
    return AttentionGradients(dqkv, dkv_global, dq_global)


def backward_of_global_rows(
    gradient: Tensor, output: Tensor, lse: Tensor, given: AttentionInputs
) -> AttentionGradients:
    """Through the global rows only, which see the keys and values that all rows see."""
    dqkv, delta = torch.empty_like(given.qkv), torch.empty_like(lse)
    dkv = dqkv[:, given.shape.width :]
    dqkv[:, : given.shape.width] = 0
    _global_rows(given, output, lse, delta, gradient, dqkv, backward=True)
    _global_keys_backward(given, gradient, lse, delta, dkv, add=False)
    return AttentionGradients(dqkv, dkv, dqkv)


def _local_rows(given: AttentionInputs, *tensors: Tensor, backward: bool) -> None:
    qkv, _, pattern, seeds, shape = given
    batch, length = pattern.kind.shape
    constants = _constants("local_rows_backward" if backward else "local_rows", shape, qkv.dtype)
    _LOCAL_ROWS(
        (_tiles_of(length, constants["BLOCK_M"]), batch * shape.heads),
        (qkv, pattern.kind, pattern.always_visible_keys, pattern.facts, *seeds, *tensors),
        (length, pattern.always_visible_keys.shape[1], shape.reach, *factors(shape)),
        BACKWARD=backward,
        **constants,
    )


def _row_deltas(output: Tensor, gradient: Tensor, delta: Tensor, shape: Shape) -> None:
    batch, length, _ = output.shape
    constants = {name: _constants("local_rows", shape, output.dtype)[name] for name in ("HEADS", "SIZE", "BLOCK_D")}
    block = 16 if INTERPRETED else 64
    grid = (_tiles_of(length, block), batch * shape.heads)
    _ROW_DELTAS(grid, (output, gradient, delta), (length,), BLOCK_M=block, **constants)


def _global_rows(given: AttentionInputs, *tensors: Tensor, backward: bool) -> None:
    (qkv, _, pattern, seeds, shape), keys = given, given.keys_of_global_rows
    lanes, shares = pattern.arrivals.shape
    constants = _constants("global_rows_backward" if backward else "global_rows", shape, qkv.dtype)
    slab = constants["BLOCK_G"] * (constants["BLOCK_D"] + 2)
    parts = qkv.new_empty(lanes * shares * slab, dtype=torch.float32)
    _GLOBAL_ROWS(
        (shares, lanes),
        (qkv, keys, *pattern[:4], *seeds, *tensors, parts, pattern.arrivals),
        (pattern.kind.shape[1], pattern.always_visible_keys.shape[1], shape.prefix, shape.outside, *factors(shape)),
        BACKWARD=backward,
        KV_GLOBAL_STRIDE=keys.stride(0),
        WRITTEN_STRIDE=tensors[-1].stride(-2) if backward else tensors[0].stride(-2),
        **constants,
    )


def _window_keys_backward(given: AttentionInputs, *tensors: Tensor) -> None:
    qkv, _, pattern, seeds, shape = given
    batch, length = pattern.kind.shape
    constants = _constants("window_keys_backward", shape, qkv.dtype)
    _WINDOW_KEYS_BACKWARD(
        (_tiles_of(length, constants["BLOCK_N"]), batch * shape.heads),
        (qkv, pattern.kind, pattern.facts, *seeds, *tensors),
        (length, shape.outside, shape.reach, *factors(shape)),
        **constants,
    )


def _always_visible_keys_backward(given: AttentionInputs, *tensors: Tensor) -> None:
    qkv, _, pattern, seeds, shape = given
    lanes, shares = pattern.arrivals.shape
    constants = _constants("always_visible_keys_backward", shape, qkv.dtype)
    slab = 2 * constants["BLOCK_G"] * constants["BLOCK_D"]
    parts = qkv.new_empty(lanes * shares * slab, dtype=torch.float32)
    _ALWAYS_VISIBLE_KEYS_BACKWARD(
        (shares, lanes),
        (qkv, pattern.kind, pattern.always_visible_keys, pattern.facts, *seeds, *tensors, parts, pattern.arrivals),
        (pattern.kind.shape[1], pattern.always_visible_keys.shape[1], *factors(shape)),
        **constants,
    )


def _global_keys_backward(given: AttentionInputs, *tensors: Tensor, add: bool) -> None:
    (qkv, _, pattern, seeds, shape), keys = given, given.keys_of_global_rows
    batch, length = pattern.kind.shape
    constants = _constants("global_keys_backward", shape, qkv.dtype)
    key_tiles = _tiles_of(length, constants["BLOCK_N"]) + _tiles_of(shape.prefix, constants["BLOCK_N"])
    _GLOBAL_KEYS_BACKWARD(
        (key_tiles, batch * shape.heads),
        (qkv, keys, pattern.kind, pattern.tokens, pattern.facts, *seeds, *tensors),
        (length, shape.prefix, batch * length, shape.outside, *factors(shape)),
        KV_GLOBAL_STRIDE=keys.stride(0),
        ADD=add,
        **constants,
    )


def project(states: Tensor, weight: Tensor, bias: Tensor, prefix: Tensor) -> Tensor:
    """Projections of all tokens, followed by the prefix rows: [rows, places * width]."""
    rows = states.flatten(0, 1)
    if prefix.shape[1] == 0 or len(weight) == 0:
        return F.linear(rows, weight, bias)
    result = rows.new_empty(rows.shape[0] + prefix.shape[0] * prefix.shape[1], weight.shape[0])
    torch.addmm(bias, rows, weight.t(), out=result[: rows.shape[0]])
    result[rows.shape[0] :].view(*prefix.shape[:2], -1)[..., -prefix.shape[2] :] = prefix
    return result


def project_rows(states: Tensor, weight: Tensor, bias: Tensor | None, pattern: DevicePattern, result: Tensor) -> None:
    """Write states Wᵀ + b of the global rows into `result`; without a bias, add states W to what is there.

    There may be a weight for all examples, [1, ...], or for each.
    """
    batch, length = pattern.kind.shape
    add = bias is None
    if add:
        weight = weight.mT
    width, inner = weight.shape[-2:]
    _PROJECT_ROWS(
        (_tiles_of(width, 64), batch, SHARES),
        (states, weight, weight if bias is None else bias, pattern.tokens, pattern.facts, result),
        (length,),
        WIDTH=width,
        INNER=inner,
        STRIDE=states.stride(-2),
        RESULT_STRIDE=result.stride(-2),
        WEIGHT_EXAMPLE=weight.stride(0) if weight.dim() == 3 and len(weight) > 1 else 0,
        WEIGHT_ROW=weight.stride(-2),
        WEIGHT_COLUMN=weight.stride(-1),
        ADD=add,
        BLOCK_G=16,
        BLOCK_C=64,
        BLOCK_K=64,
        PRECISION=precision(states.dtype),
    )


def _tiles_of(count: int, size: int) -> int:
    return -(-count // size)


@lru_cache
def _constants(kernel: str, shape: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """What a kernel is compiled for."""
    tiles = (TILES_WITH_DROPOUT if shape.dropout else TILES)[kernel]
    if INTERPRETED:  # small tiles, so that small inputs have several
        tiles = {name: 16 if name.startswith("BLOCK") else value for name, value in tiles.items()}
    elif dtype == torch.float32 or shape.size > 64:  # twice the bytes per row
        tiles = {name: min(value, 32) if name.startswith("BLOCK") else value for name, value in tiles.items()}
        tiles |= {"num_warps": 4, "num_stages": 2}
    return {
        "HEADS": shape.heads,
        "SIZE": shape.size,
        "BLOCK_D": max(16, 1 << (shape.size - 1).bit_length()),
        "PRECISION": precision(dtype),
        "DROPOUT": shape.dropout > 0,
        **tiles,
    }


def precision(dtype: torch.dtype) -> str:
    # TF32 is too coarse to give the same numbers.
    return "ieee" if dtype == torch.float32 else "tf32"


@lru_cache
def factors(shape: Shape) -> tuple[float, int, float, float]:
    """The scale of scores (in units of log 2), keep_threshold, keep_scale, and the scale of the scores' gradient."""
    return math.log2(math.e) / math.sqrt(shape.size), *levels(shape.dropout), 1 / math.sqrt(shape.size)


# Tile sizes and launch options, for 16-bit types and head sizes up to 64; measured on an H200.
TILES: dict[str, dict[str, int]] = {
    "local_rows": {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_G": 16, "num_warps": 4, "num_stages": 2},
    "local_rows_backward": {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_G": 32, "num_warps": 4, "num_stages": 3},
    "global_rows": {"BLOCK_G": 16, "BLOCK_N": 128, "num_warps": 4, "num_stages": 2},
    "global_rows_backward": {"BLOCK_G": 16, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
    "window_keys_backward": {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
    "always_visible_keys_backward": {"BLOCK_M": 64, "BLOCK_G": 16, "num_warps": 2, "num_stages": 3},
    "global_keys_backward": {"BLOCK_G": 16, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
}
# Dropout masks take registers, so tiles are smaller.
TILES_WITH_DROPOUT: dict[str, dict[str, int]] = {
    **TILES,
    "local_rows": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_G": 16, "num_warps": 4, "num_stages": 2},
    "local_rows_backward": {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_G": 32, "num_warps": 4, "num_stages": 2},
    "window_keys_backward": {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
}


@triton.jit(do_not_specialize=["batch", "length", "prefix", "outside"])
def _list_tokens(
    is_masked,
    is_global,
    kinds,
    tokens,
    always_visible_keys,
    facts,
    batch,
    length,
    prefix,
    outside,
    BLOCK: tl.constexpr,
):
    example = tl.program_id(0)
    here = example.to(tl.int64) * length
    tokens += example * (length + 1)
    always_visible_keys += example * (length + prefix)
    facts += example * FACTS
    for start in range(0, prefix, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(always_visible_keys + place, batch * length + example * prefix + place, mask=place < prefix)
    token_count, visible_count, first, last, leading = 0, prefix, length, 0, length
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < length
        masked = tl.load(is_masked + here + place, mask=inside, other=1) != 0
        everywhere = tl.load(is_global + here + place, mask=inside, other=0) != 0
        kind = tl.where(masked, MASKED, tl.where(everywhere, GLOBAL, LOCAL))
        tl.store(kinds + here + place, kind.to(tl.int8), mask=inside)
        tl.store(tokens + token_count + tl.cumsum(everywhere.to(tl.int32), 0) - 1, place, mask=everywhere)
        is_always_visible = everywhere & (place >= outside)
        slot = visible_count + tl.cumsum(is_always_visible.to(tl.int32), 0) - 1
        tl.store(always_visible_keys + slot, example * length + place, mask=is_always_visible)
        token_count += tl.sum(everywhere.to(tl.int32), 0)
        visible_count += tl.sum(is_always_visible.to(tl.int32), 0)
        first = tl.minimum(first, tl.min(tl.where(masked, length, place), 0))
        last = tl.maximum(last, tl.max(tl.where(masked, 0, place + 1), 0))
        leading = tl.minimum(leading, tl.min(tl.where(kind == GLOBAL, length, place), 0))
    tl.store(facts + FIRST, tl.minimum(first, last))  # all padding: from 0 to 0
    tl.store(facts + LAST, last)
    tl.store(facts + TOKENS, token_count)
    tl.store(facts + ALWAYS_VISIBLE, visible_count)
    tl.store(facts + LEADING, leading)


_LIST_TOKENS = TritonKernel(_list_tokens)
_LOCAL_ROWS, _GLOBAL_ROWS = TritonKernel(attention_forward.local_rows), TritonKernel(attention_forward.global_rows)
_ROW_DELTAS, _PROJECT_ROWS = TritonKernel(attention_forward.row_deltas), TritonKernel(attention_forward.project_rows)
_WINDOW_KEYS_BACKWARD, _ALWAYS_VISIBLE_KEYS_BACKWARD, _GLOBAL_KEYS_BACKWARD = (
    TritonKernel(attention_backward.window_keys_backward),
    TritonKernel(attention_backward.always_visible_keys_backward),
    TritonKernel(attention_backward.global_keys_backward),
)

"""Starts the attention kernels, with the tile sizes that suit the device."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.triton import attention_backward, attention_forward
from prefixprop.attention.triton.dropout import levels
from prefixprop.attention.triton.pattern import DevicePattern
from prefixprop.attention.triton.triton_kernel import TritonKernel

_LOCAL_ROWS, _GLOBAL_ROWS = TritonKernel(attention_forward.local_rows), TritonKernel(attention_forward.global_rows)
_ROW_DELTAS, _PROJECT_ROWS = TritonKernel(attention_forward.row_deltas), TritonKernel(attention_forward.project_rows)
_BAND_KEYS, _LISTED_KEYS, _FAR_KEYS = (
    TritonKernel(attention_backward.band_keys),
    TritonKernel(attention_backward.listed_keys),
    TritonKernel(attention_backward.far_keys),
)
ALL_ROWS = -1  # are those that learn
SHARES = 8  # programs that share an example's global rows where these are projected


class Shape(NamedTuple):
    """What the kernels are compiled for (heads, size), and what they are told at each start."""

    heads: int
    size: int
    reach: int
    prefix: int  # keys (Eq. 2)
    outside: int  # prefix rows outside the softmax, keys to nobody (Eq. 3)
    dropout: float


class Words(NamedTuple):
    """Of dropout's mask: one for each row of each head, one for each row of the buffers."""

    rows: Tensor
    columns: Tensor


def forward(
    near: Tensor, far: Tensor | None, pattern: DevicePattern, words: Words, shape: Shape, others: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of every row [batch, length, hidden], and the logarithm of its softmax's total.

    Without `far`, global rows see the keys and values that all rows see. `others` are the rows that are not global,
    if they were computed elsewhere; global ones are written in between.
    """
    batch, length = pattern.kind.shape
    output = near.new_empty(batch, length, shape.heads * shape.size) if others is None else others
    log_totals = near.new_empty(batch, shape.heads, length, dtype=torch.float32)
    # Backward's tensors have no part in this; any address does.
    if others is None:
        _local_rows(near, pattern, words, shape, output, log_totals, log_totals, output, output, backward=False)
    if pattern.has_tokens:
        far = near[:, shape.heads * shape.size :] if far is None else far
        _global_rows(near, far, pattern, words, shape, output, log_totals, log_totals, output, output, backward=False)
    return output, log_totals


def backward(
    gradient: Tensor,
    output: Tensor,
    log_totals: Tensor,
    near: Tensor,
    far: Tensor | None,
    pattern: DevicePattern,
    words: Words,
    shape: Shape,
    learning_rows: int = ALL_ROWS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `near` and `far`; the third holds those of the global rows' queries, and nothing elsewhere.

    Without `far`, everything is in the first, and the others are parts of it.
    If only so many rows at the front learn, which are global, there is nothing in `near` but the keys and values that
    are listed, and without any nothing in the third.
    """
    batch, length = pattern.kind.shape
    width, shared = shape.heads * shape.size, far is None
    for_near = torch.empty_like(near)
    if far is None:
        far, for_far, for_query = near[:, width:], for_near[:, width:], for_near
    else:
        make = torch.empty_like if pattern.has_tokens else torch.zeros_like  # then no kernel writes there
        for_far, for_query = make(far), make(output)
    if shape.prefix:  # nobody asks with a prefix row
        for_near[batch * length :, :width] = 0
    deltas = torch.empty_like(log_totals)
    if learning_rows == ALL_ROWS:
        _local_rows(near, pattern, words, shape, output, log_totals, deltas, gradient, for_near, backward=True)
    else:
        _row_deltas(output, gradient, deltas, shape)
    if learning_rows and pattern.has_tokens:
        _global_rows(near, far, pattern, words, shape, output, log_totals, deltas, gradient, for_query, backward=True)
    if learning_rows == ALL_ROWS:
        _band_keys(near, pattern, words, shape, gradient, log_totals, deltas, for_near)
    if pattern.has_tokens or shape.prefix:
        _listed_keys(near, pattern, words, shape, gradient, log_totals, deltas, for_near)
    if pattern.has_tokens:
        _far_keys(near, far, pattern, words, shape, gradient, log_totals, deltas, for_far, add=shared)
    return for_near, for_far, for_query


def backward_of_global_rows(
    gradient: Tensor,
    output: Tensor,
    log_totals: Tensor,
    near: Tensor,
    pattern: DevicePattern,
    words: Words,
    shape: Shape,
) -> Tensor:
    """The gradient of `near` through the global rows alone, which see the keys and values that all rows see."""
    width, for_near, deltas = shape.heads * shape.size, torch.empty_like(near), torch.empty_like(log_totals)
    for_near[:, :width] = 0
    far, for_far = near[:, width:], for_near[:, width:]
    _global_rows(near, far, pattern, words, shape, output, log_totals, deltas, gradient, for_near, backward=True)
    _far_keys(near, far, pattern, words, shape, gradient, log_totals, deltas, for_far, add=False)
    return for_near


def _local_rows(
    near: Tensor, pattern: DevicePattern, words: Words, shape: Shape, *tensors: Tensor, backward: bool
) -> None:
    batch, length = pattern.kind.shape
    constants = _constants("local_rows_backward" if backward else "local_rows", shape, near.dtype)
    _LOCAL_ROWS(
        (_tiles_of(length, constants["BLOCK_M"]), batch * shape.heads),
        (near, pattern.kind, pattern.listed, pattern.facts, *words, *tensors),
        (length, pattern.listed.shape[1], shape.reach, *factors(shape)),
        BACKWARD=backward,
        **constants,
    )


def _row_deltas(output: Tensor, gradient: Tensor, deltas: Tensor, shape: Shape) -> None:
    batch, length, _ = output.shape
    constants = {name: _constants("local_rows", shape, output.dtype)[name] for name in ("HEADS", "SIZE", "BLOCK_D")}
    block = 16 if INTERPRETED else 64
    _ROW_DELTAS(
        (_tiles_of(length, block), batch * shape.heads), (output, gradient, deltas), (length,), BLOCK_M=block,
        **constants,
    )  # fmt: skip


def _global_rows(
    near: Tensor, far: Tensor, pattern: DevicePattern, words: Words, shape: Shape, *tensors: Tensor, backward: bool
) -> None:
    lanes, shares = pattern.arrivals.shape
    constants = _constants("global_rows_backward" if backward else "global_rows", shape, near.dtype)
    slab = constants["BLOCK_G"] * (constants["BLOCK_D"] + 2)
    parts = near.new_empty(lanes * shares * slab, dtype=torch.float32)
    _GLOBAL_ROWS(
        (shares, lanes),
        (near, far, *pattern[:4], *words, *tensors, parts, pattern.arrivals),
        (pattern.kind.shape[1], pattern.listed.shape[1], shape.prefix, shape.outside, *factors(shape)),
        BACKWARD=backward,
        FAR_STRIDE=far.stride(0),
        WRITTEN_STRIDE=tensors[-1].stride(-2) if backward else tensors[0].stride(-2),
        **constants,
    )


def _band_keys(near: Tensor, pattern: DevicePattern, words: Words, shape: Shape, *tensors: Tensor) -> None:
    batch, length = pattern.kind.shape
    constants = _constants("band_keys", shape, near.dtype)
    _BAND_KEYS(
        (_tiles_of(length, constants["BLOCK_N"]), batch * shape.heads),
        (near, pattern.kind, pattern.facts, *words, *tensors),
        (length, shape.outside, shape.reach, *factors(shape)),
        **constants,
    )


def _listed_keys(near: Tensor, pattern: DevicePattern, words: Words, shape: Shape, *tensors: Tensor) -> None:
    lanes, shares = pattern.arrivals.shape
    constants = _constants("listed_keys", shape, near.dtype)
    slab = 2 * constants["BLOCK_G"] * constants["BLOCK_D"]
    parts = near.new_empty(lanes * shares * slab, dtype=torch.float32)
    _LISTED_KEYS(
        (shares, lanes),
        (near, pattern.kind, pattern.listed, pattern.facts, *words, *tensors, parts, pattern.arrivals),
        (pattern.kind.shape[1], pattern.listed.shape[1], *factors(shape)),
        **constants,
    )


def _far_keys(
    near: Tensor, far: Tensor, pattern: DevicePattern, words: Words, shape: Shape, *tensors: Tensor, add: bool
) -> None:
    batch, length = pattern.kind.shape
    constants = _constants("far_keys", shape, near.dtype)
    key_tiles = _tiles_of(length, constants["BLOCK_N"]) + _tiles_of(shape.prefix, constants["BLOCK_N"])
    _FAR_KEYS(
        (key_tiles, batch * shape.heads),
        (near, far, pattern.kind, pattern.tokens, pattern.facts, *words, *tensors),
        (length, shape.prefix, batch * length, shape.outside, *factors(shape)),
        FAR_STRIDE=far.stride(0),
        ADD=add,
        **constants,
    )


def project(states: Tensor, weight: Tensor, bias: Tensor, prefix: Tensor) -> Tensor:
    """Projections of all tokens, and behind them the prefix rows in the last places: [rows, places * width]."""
    rows = states.flatten(0, 1)
    if prefix.shape[1] == 0 or len(weight) == 0:
        return F.linear(rows, weight, bias)
    result = rows.new_empty(rows.shape[0] + prefix.shape[0] * prefix.shape[1], weight.shape[0])
    torch.addmm(bias, rows, weight.t(), out=result[: rows.shape[0]])
    result[rows.shape[0] :].view(*prefix.shape[:2], -1)[..., -prefix.shape[2] :] = prefix
    return result


def project_rows(
    states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, facts: Tensor, result: Tensor
) -> None:
    """Write states Wᵀ + b of the global rows into `result`; without a bias, add states W to what is there.

    There may be a weight for all examples, [1, ...], or for each.
    """
    batch, length = tokens.shape[0], tokens.shape[1] - 1
    add = bias is None
    if add:
        weight = weight.mT
    width, inner = weight.shape[-2:]
    _PROJECT_ROWS(
        (_tiles_of(width, 64), batch, SHARES),
        (states, weight, weight if bias is None else bias, tokens, facts, result),
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
    # The matrix units' own float32 is too coarse for "the same numbers".
    return "ieee" if dtype == torch.float32 else "tf32"


@lru_cache
def factors(shape: Shape) -> tuple[float, int, float, float]:
    """Of scores (in units of log 2), dropout's least and growth, and of the scores' gradient."""
    return math.log2(math.e) / math.sqrt(shape.size), *levels(shape.dropout), 1 / math.sqrt(shape.size)


# Tile sizes and launch options, for 16-bit types and head sizes up to 64; measured on an H200.
TILES: dict[str, dict[str, int]] = {
    "local_rows": {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_G": 16, "num_warps": 4, "num_stages": 2},
    "local_rows_backward": {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_G": 32, "num_warps": 4, "num_stages": 3},
    "global_rows": {"BLOCK_G": 16, "BLOCK_N": 128, "num_warps": 4, "num_stages": 2},
    "global_rows_backward": {"BLOCK_G": 16, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
    "band_keys": {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
    "listed_keys": {"BLOCK_M": 64, "BLOCK_G": 16, "num_warps": 2, "num_stages": 3},
    "far_keys": {"BLOCK_G": 16, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
}
# Dropout's masks take registers.
TILES_WITH_DROPOUT: dict[str, dict[str, int]] = {
    **TILES,
    "local_rows": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_G": 16, "num_warps": 4, "num_stages": 2},
    "local_rows_backward": {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_G": 32, "num_warps": 4, "num_stages": 2},
    "band_keys": {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
}

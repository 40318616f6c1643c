"""Launches the attention kernels with tile sizes for the device."""

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
_WINDOW_KEYS_BACKWARD, _ALWAYS_VISIBLE_KEYS_BACKWARD, _GLOBAL_KEYS_BACKWARD = (
    TritonKernel(attention_backward.window_keys_backward),
    TritonKernel(attention_backward.always_visible_keys_backward),
    TritonKernel(attention_backward.global_keys_backward),
)
ALL_ROWS = -1  # need a gradient
SHARES = 8  # programs that share an example's global rows where these are projected


class Shape(NamedTuple):
    """Sizes that kernels are compiled for (heads, size), and those that they get at each launch."""

    heads: int
    size: int
    reach: int
    prefix: int  # keys (Eq. 2)
    outside: int  # prefix rows that are in no softmax (Eq. 3)
    dropout: float


class DropoutSeeds(NamedTuple):
    """Seeds of dropout's masks: one for each row of each head, and one for each row of the buffers."""

    rows: Tensor
    columns: Tensor


def forward(
    qkv: Tensor,
    kv_global: Tensor | None,
    pattern: DevicePattern,
    seeds: DropoutSeeds,
    shape: Shape,
    others: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of every row [batch, length, hidden], and the log-sum-exp of its scores.

    Without `kv_global`, global rows see the keys and values that all rows see. `others` holds the rows that are not
    global if they were computed elsewhere; the global rows are written into it.
    """
    batch, length = pattern.kind.shape
    output = qkv.new_empty(batch, length, shape.heads * shape.size) if others is None else others
    lse = qkv.new_empty(batch, shape.heads, length, dtype=torch.float32)
    # Tensors of backward are not used here; any address will do.
    if others is None:
        _local_rows(qkv, pattern, seeds, shape, output, lse, lse, output, output, backward=False)
    if pattern.has_tokens:
        kv_global = qkv[:, shape.heads * shape.size :] if kv_global is None else kv_global
        _global_rows(qkv, kv_global, pattern, seeds, shape, output, lse, lse, output, output, backward=False)
    return output, lse


def backward(
    gradient: Tensor,
    output: Tensor,
    lse: Tensor,
    qkv: Tensor,
    kv_global: Tensor | None,
    pattern: DevicePattern,
    seeds: DropoutSeeds,
    shape: Shape,
    grad_rows: int = ALL_ROWS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `qkv` and `kv_global`; the third holds those of the global rows' queries, and nothing elsewhere.

    Without `kv_global`, everything is in the first, and the others are parts of it.
    If only so many rows at the front learn, which are global, there is nothing in `qkv` but the keys and values that
    are listed, and without any nothing in the third.
    """
    batch, length = pattern.kind.shape
    width, shared = shape.heads * shape.size, kv_global is None
    dqkv = torch.empty_like(qkv)
    if kv_global is None:
        kv_global, dkv_global, dq_global = qkv[:, width:], dqkv[:, width:], dqkv
    else:
        make = torch.empty_like if pattern.has_tokens else torch.zeros_like  # then no kernel writes there
        dkv_global, dq_global = make(kv_global), make(output)
    if shape.prefix:  # prefix rows have no queries
        dqkv[batch * length :, :width] = 0
    delta = torch.empty_like(lse)
    if grad_rows == ALL_ROWS:
        _local_rows(qkv, pattern, seeds, shape, output, lse, delta, gradient, dqkv, backward=True)
    else:
        _row_deltas(output, gradient, delta, shape)
    if grad_rows and pattern.has_tokens:
        _global_rows(qkv, kv_global, pattern, seeds, shape, output, lse, delta, gradient, dq_global, backward=True)
    if grad_rows == ALL_ROWS:
        _window_keys_backward(qkv, pattern, seeds, shape, gradient, lse, delta, dqkv)
    if pattern.has_tokens or shape.prefix:
        _always_visible_keys_backward(qkv, pattern, seeds, shape, gradient, lse, delta, dqkv)
    if pattern.has_tokens:
        _global_keys_backward(qkv, kv_global, pattern, seeds, shape, gradient, lse, delta, dkv_global, add=shared)
    return dqkv, dkv_global, dq_global


def backward_of_global_rows(
    gradient: Tensor,
    output: Tensor,
    lse: Tensor,
    qkv: Tensor,
    pattern: DevicePattern,
    seeds: DropoutSeeds,
    shape: Shape,
) -> Tensor:
    """The gradient of `qkv` through the global rows only, which see the keys and values that all rows see."""
    width, dqkv, delta = shape.heads * shape.size, torch.empty_like(qkv), torch.empty_like(lse)
    dqkv[:, :width] = 0
    kv_global, dkv_global = qkv[:, width:], dqkv[:, width:]
    _global_rows(qkv, kv_global, pattern, seeds, shape, output, lse, delta, gradient, dqkv, backward=True)
    _global_keys_backward(qkv, kv_global, pattern, seeds, shape, gradient, lse, delta, dkv_global, add=False)
    return dqkv


def _local_rows(
    qkv: Tensor, pattern: DevicePattern, seeds: DropoutSeeds, shape: Shape, *tensors: Tensor, backward: bool
) -> None:
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
    _ROW_DELTAS(
        (_tiles_of(length, block), batch * shape.heads), (output, gradient, delta), (length,), BLOCK_M=block,
        **constants,
    )  # fmt: skip


def _global_rows(
    qkv: Tensor,
    kv_global: Tensor,
    pattern: DevicePattern,
    seeds: DropoutSeeds,
    shape: Shape,
    *tensors: Tensor,
    backward: bool,
) -> None:
    lanes, shares = pattern.arrivals.shape
    constants = _constants("global_rows_backward" if backward else "global_rows", shape, qkv.dtype)
    slab = constants["BLOCK_G"] * (constants["BLOCK_D"] + 2)
    parts = qkv.new_empty(lanes * shares * slab, dtype=torch.float32)
    _GLOBAL_ROWS(
        (shares, lanes),
        (qkv, kv_global, *pattern[:4], *seeds, *tensors, parts, pattern.arrivals),
        (pattern.kind.shape[1], pattern.always_visible_keys.shape[1], shape.prefix, shape.outside, *factors(shape)),
        BACKWARD=backward,
        KV_GLOBAL_STRIDE=kv_global.stride(0),
        WRITTEN_STRIDE=tensors[-1].stride(-2) if backward else tensors[0].stride(-2),
        **constants,
    )


def _window_keys_backward(
    qkv: Tensor, pattern: DevicePattern, seeds: DropoutSeeds, shape: Shape, *tensors: Tensor
) -> None:
    batch, length = pattern.kind.shape
    constants = _constants("window_keys_backward", shape, qkv.dtype)
    _WINDOW_KEYS_BACKWARD(
        (_tiles_of(length, constants["BLOCK_N"]), batch * shape.heads),
        (qkv, pattern.kind, pattern.facts, *seeds, *tensors),
        (length, shape.outside, shape.reach, *factors(shape)),
        **constants,
    )


def _always_visible_keys_backward(
    qkv: Tensor, pattern: DevicePattern, seeds: DropoutSeeds, shape: Shape, *tensors: Tensor
) -> None:
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


def _global_keys_backward(
    qkv: Tensor,
    kv_global: Tensor,
    pattern: DevicePattern,
    seeds: DropoutSeeds,
    shape: Shape,
    *tensors: Tensor,
    add: bool,
) -> None:
    batch, length = pattern.kind.shape
    constants = _constants("global_keys_backward", shape, qkv.dtype)
    key_tiles = _tiles_of(length, constants["BLOCK_N"]) + _tiles_of(shape.prefix, constants["BLOCK_N"])
    _GLOBAL_KEYS_BACKWARD(
        (key_tiles, batch * shape.heads),
        (qkv, kv_global, pattern.kind, pattern.tokens, pattern.facts, *seeds, *tensors),
        (length, shape.prefix, batch * length, shape.outside, *factors(shape)),
        KV_GLOBAL_STRIDE=kv_global.stride(0),
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

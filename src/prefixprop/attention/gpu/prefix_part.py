"""Attention to the prefix rows outside the softmax (Eq. 3), for the kernel `exp` and a fixed α.

With that kernel the second part of Eq. 3 is a softmax over the prefix rows alone, α · softmax(q Pₖᵀ / √d) Pᵥ. The
`count` prefix rows at the front are keys in nobody's softmax; global rows see them through their own keys and
values.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.gpu import launch
from prefixprop.attention.gpu.dropout import is_kept
from prefixprop.attention.gpu.launch import Shape, Words
from prefixprop.attention.gpu.pattern import DevicePattern
from prefixprop.attention.gpu.tiles import GLOBAL, MASKED, UNSEEN, load_rows, score, store_rows
from prefixprop.attention.gpu.triton_kernel import TritonKernel

MOST_ROWS = 128  # of the prefix; a program holds all of them
SHARES = 8  # programs that divide the rows of an example's head, where they add up gradients of the prefix


def add_part(
    rows: Tensor, near: Tensor, far: Tensor, pattern: DevicePattern, words: Words, shape: Shape, weight: float
) -> Tensor:
    """`rows`, which are attention's, with `weight` times the attention to the prefix rows; padding stays zero."""
    batch, length = pattern.kind.shape
    constants = _constants(shape, near)
    summed = torch.empty_like(rows)
    _PREFIX_PART(
        (-(-length // constants["BLOCK_M"]), batch * shape.heads),
        (near, far, pattern.kind, *words, rows, summed),
        (length, shape.outside, *launch.factors(shape)[:3], weight),
        **constants,
    )
    return summed


def add_gradients(
    gradient: Tensor,
    near: Tensor,
    far: Tensor,
    pattern: DevicePattern,
    words: Words,
    shape: Shape,
    weight: float,
    results: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Add to `results`, the gradients of near, far and the global rows' queries, what comes through `add_part`."""
    batch, length = pattern.kind.shape
    for_near, for_far, for_query = results
    constants = _constants(shape, near)
    tile = (constants["BLOCK_J"], constants["BLOCK_D"])
    parts = near.new_empty(SHARES, batch, shape.heads, 4, *tile, dtype=torch.float32)
    _PREFIX_PART_BACKWARD(
        (SHARES, batch * shape.heads),
        (near, far, pattern.kind, *words, gradient, for_near, for_query, parts),
        (length, shape.outside, *launch.factors(shape), weight),
        SHARES=SHARES,
        **constants,
    )
    summed = parts.sum(dim=0)[..., : shape.outside, : shape.size]
    summed = summed.permute(0, 3, 2, 1, 4).flatten(3)  # [batch, j, 4, W]
    for_near.view(batch, length, 3, -1)[:, : shape.outside, 1:] += summed[:, :, :2]
    for_far.view(batch, length, 2, -1)[:, : shape.outside] += summed[:, :, 2:]


def _constants(shape: Shape, near: Tensor) -> dict[str, Any]:
    return {
        "HEADS": shape.heads,
        "SIZE": shape.size,
        "BLOCK_D": max(16, 1 << (shape.size - 1).bit_length()),
        "BLOCK_M": 16 if INTERPRETED else 64,
        "BLOCK_J": max(16, 1 << (shape.outside - 1).bit_length()),
        "PRECISION": launch.precision(near.dtype),
        "DROPOUT": shape.dropout > 0,
    }


@triton.jit
def _probabilities(
    query, keys, count, scale,
    STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_J: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of each prefix row, for each query, and the prefix rows' keys."""
    place = tl.arange(0, BLOCK_J)
    inside = place < count
    key = load_rows(keys, place, inside, STRIDE, SIZE, BLOCK_D)
    scored = score(query, key, tl.where(inside, 0.0, UNSEEN), scale, PRECISION)
    grown = tl.exp2(scored - tl.max(scored, axis=1)[:, None])
    return grown / tl.sum(grown, axis=1)[:, None], key


@triton.jit
def _attended(
    query, keys, words, column_words, count, scale, least, growth,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_J: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, BLOCK_J)
    value = load_rows(keys + WIDTH, place, place < count, STRIDE, SIZE, BLOCK_D)
    weights, _ = _probabilities(query, keys, count, scale, STRIDE, SIZE, BLOCK_D, BLOCK_J, PRECISION)
    if DROPOUT:
        column = tl.load(column_words + place, mask=place < count, other=0)
        weights = tl.where(is_kept(words[:, None], column[None, :], least), weights * growth, 0.0)
    return tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)


@triton.jit(do_not_specialize=["length", "count", "least"])
def _prefix_part(
    near, far, kind, row_words, column_words, rows, summed, length, count, scale, least, growth, weight,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_J: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = HEADS * SIZE
    lane = tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    queries = near + here * 3 * WIDTH + head * SIZE
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_kind = tl.load(kind + here + row, mask=row < length, other=MASKED)
    query = load_rows(queries, row, row < length, 3 * WIDTH, SIZE, BLOCK_D)
    words = tl.load(row_words + there + row, mask=row < length, other=0) if DROPOUT else row
    added = _attended(
        query, queries + WIDTH, words, column_words + here, count, scale, least, growth,
        3 * WIDTH, WIDTH, SIZE, BLOCK_D, BLOCK_J, PRECISION, DROPOUT,
    )  # fmt: skip
    if tl.max((row_kind == GLOBAL).to(tl.int32), axis=0) > 0:
        theirs = _attended(
            query, far + here * 2 * WIDTH + head * SIZE, words, column_words + here, count, scale, least, growth,
            2 * WIDTH, WIDTH, SIZE, BLOCK_D, BLOCK_J, PRECISION, DROPOUT,
        )  # fmt: skip
        added = tl.where((row_kind == GLOBAL)[:, None], theirs, added)
    place = here * WIDTH + head * SIZE
    result = load_rows(rows + place, row, row < length, WIDTH, SIZE, BLOCK_D).to(tl.float32)
    result += tl.where((row_kind != MASKED)[:, None], added * weight, 0.0)
    store_rows(summed + place, row, row < length, result, WIDTH, SIZE, BLOCK_D)


@triton.jit
def _differentiate(
    query, upstream, keys, words, column_words, count, scale, least, growth, plain_scale,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_J: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries, and of the prefix rows' keys and values, by rows with the gradient `upstream`."""
    place = tl.arange(0, BLOCK_J)
    value = load_rows(keys + WIDTH, place, place < count, STRIDE, SIZE, BLOCK_D)
    weights, key = _probabilities(query, keys, count, scale, STRIDE, SIZE, BLOCK_D, BLOCK_J, PRECISION)
    for_weights = tl.dot(upstream, tl.trans(value), input_precision=PRECISION)
    used = weights
    if DROPOUT:
        column = tl.load(column_words + place, mask=place < count, other=0)
        kept = is_kept(words[:, None], column[None, :], least)
        used = tl.where(kept, weights * growth, 0.0)
        for_weights = tl.where(kept, for_weights * growth, 0.0)
    for_scores = weights * (for_weights - tl.sum(weights * for_weights, axis=1)[:, None]) * plain_scale
    for_scores = for_scores.to(query.dtype)
    return (
        tl.dot(for_scores, key, input_precision=PRECISION),
        tl.dot(tl.trans(for_scores), query, input_precision=PRECISION),
        tl.dot(tl.trans(used.to(query.dtype)), upstream, input_precision=PRECISION),
    )


@triton.jit(do_not_specialize=["length", "count", "least"])
def _prefix_part_backward(
    near, far, kind, row_words, column_words, gradient, for_near, for_query, parts,
    length, count, scale, least, growth, plain_scale, weight,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_J: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Every program leaves its sums in `parts` [SHARES, lanes, 4, BLOCK_J, BLOCK_D]; to add them up in the order
    in which they are ready would give other bits each time."""
    WIDTH: tl.constexpr = HEADS * SIZE
    share, lane = tl.program_id(0), tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    queries = near + here * 3 * WIDTH + head * SIZE
    for_key = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    for_value = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    for_far_key = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    for_far_value = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    for start in range(share * BLOCK_M, length, SHARES * BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        row_kind = tl.load(kind + here + row, mask=row < length, other=MASKED)
        is_global, is_local = row_kind == GLOBAL, (row_kind != GLOBAL) & (row_kind != MASKED)
        query = load_rows(queries, row, row < length, 3 * WIDTH, SIZE, BLOCK_D)
        words = tl.load(row_words + there + row, mask=row < length, other=0) if DROPOUT else row
        upstream = load_rows(gradient + here * WIDTH + head * SIZE, row, row < length, WIDTH, SIZE, BLOCK_D)
        upstream = (upstream.to(tl.float32) * weight).to(query.dtype)
        by_query, by_key, by_value = _differentiate(
            query, tl.where(is_local[:, None], upstream, 0.0).to(query.dtype), queries + WIDTH, words,
            column_words + here, count, scale, least, growth, plain_scale,
            3 * WIDTH, WIDTH, SIZE, BLOCK_D, BLOCK_J, PRECISION, DROPOUT,
        )  # fmt: skip
        for_key += by_key
        for_value += by_value
        target = for_near + here * 3 * WIDTH + head * SIZE
        by_query += load_rows(target, row, is_local, 3 * WIDTH, SIZE, BLOCK_D).to(tl.float32)
        store_rows(target, row, is_local, by_query, 3 * WIDTH, SIZE, BLOCK_D)
        if tl.max(is_global.to(tl.int32), axis=0) > 0:
            by_query, by_key, by_value = _differentiate(
                query, tl.where(is_global[:, None], upstream, 0.0).to(query.dtype),
                far + here * 2 * WIDTH + head * SIZE, words,
                column_words + here, count, scale, least, growth, plain_scale,
                2 * WIDTH, WIDTH, SIZE, BLOCK_D, BLOCK_J, PRECISION, DROPOUT,
            )  # fmt: skip
            for_far_key += by_key
            for_far_value += by_value
            target = for_query + here * WIDTH + head * SIZE
            by_query += load_rows(target, row, is_global, WIDTH, SIZE, BLOCK_D).to(tl.float32)
            store_rows(target, row, is_global, by_query, WIDTH, SIZE, BLOCK_D)
    TILE: tl.constexpr = BLOCK_J * BLOCK_D
    left = parts + (share.to(tl.int64) * tl.num_programs(1) + lane) * 4 * TILE
    place = tl.arange(0, BLOCK_J)[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    tl.store(left + place, for_key)
    tl.store(left + TILE + place, for_value)
    tl.store(left + 2 * TILE + place, for_far_key)
    tl.store(left + 3 * TILE + place, for_far_value)


_PREFIX_PART, _PREFIX_PART_BACKWARD = TritonKernel(_prefix_part), TritonKernel(_prefix_part_backward)

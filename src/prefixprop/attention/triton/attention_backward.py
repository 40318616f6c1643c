"""Backward: the gradients of keys and values."""

from __future__ import annotations

import triton
import triton.language as tl

from prefixprop.attention.triton.shared import (
    ALWAYS_VISIBLE,
    FACTS,
    FIRST,
    GLOBAL,
    LAST,
    LOCAL,
    MASKED,
    TOKENS,
    UNSEEN,
    is_kept,
    is_last,
    load_rows,
    part_of,
    reach_of,
    score,
    share_of,
    store_rows,
)


@triton.jit
def receive(
    scored, v, q, gradient, row_lse, row_delta, row_seeds, column_seeds, dk, dv, keep_threshold, keep_scale,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add what a tile of rows contributes to the gradients of a tile of keys and values."""
    weights = tl.exp2(scored - row_lse[:, None])
    dp = tl.dot(gradient, tl.trans(v), input_precision=PRECISION)
    dropped = weights
    if DROPOUT:
        kept = is_kept(row_seeds[:, None], column_seeds[None, :], keep_threshold)
        dropped = tl.where(kept, weights * keep_scale, 0.0)
        dp = tl.where(kept, dp * keep_scale, 0.0)
    dv = tl.dot(tl.trans(dropped.to(gradient.dtype)), gradient, dv, input_precision=PRECISION)
    # Softmax: dS = P (dP - Σ P dP)
    ds = weights * (dp - row_delta[:, None])
    dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def receive_local(
    k, v, unseen, column, column_seeds, dk, dv,
    queries, gradients, kind, lse, delta, row_seeds, low, high, reach,
    scale, keep_threshold, keep_scale,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BAND: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add what the local rows from `low` to `high` contribute; with BAND, only rows within reach of a key."""
    for start in range(low, high, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        inside = row < high
        is_local = tl.load(kind + row, mask=inside, other=GLOBAL) == LOCAL
        q = load_rows(queries, row, inside, STRIDE, SIZE, BLOCK_D)
        gradient = load_rows(gradients, row, inside, WIDTH, SIZE, BLOCK_D)
        # Other rows get an infinite lse, so that their probabilities are zero.
        row_lse = tl.load(lse + row, mask=is_local, other=-UNSEEN)
        row_delta = tl.load(delta + row, mask=is_local, other=0.0)
        seeds = tl.load(row_seeds + row, mask=inside, other=0) if DROPOUT else row
        scored = score(q, k, unseen, scale, PRECISION)
        if BAND:  # for inner tiles too: to test for them costs more
            scored = tl.where(tl.abs(row[:, None] - column[None, :]) <= reach, scored, UNSEEN)
        dk, dv = receive(
            scored, v, q, gradient, row_lse, row_delta, seeds, column_seeds, dk, dv,
            keep_threshold, keep_scale, PRECISION, DROPOUT,
        )  # fmt: skip
    return dk, dv


@triton.jit(do_not_specialize=["length", "outside", "reach", "keep_threshold"])
def window_keys_backward(
    qkv, kind, facts, row_seeds, column_seeds, gradient, lse, delta, dqkv,
    length, outside, reach, scale, keep_threshold, keep_scale, plain_scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values from their neighbourhood. Does not write those of always visible keys."""
    WIDTH: tl.constexpr = HEADS * SIZE
    STRIDE: tl.constexpr = 3 * WIDTH
    start, lane = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    first, last = tl.load(facts + example * FACTS + FIRST), tl.load(facts + example * FACTS + LAST)
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    queries = qkv + here * STRIDE + head * SIZE
    column = start + tl.arange(0, BLOCK_N)
    column_kind = tl.load(kind + here + column, mask=column < length, other=GLOBAL)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if (start < last) & (start + BLOCK_N > first):  # else it is all padding
        k = load_rows(queries + WIDTH, column, column < length, STRIDE, SIZE, BLOCK_D)
        v = load_rows(queries + 2 * WIDTH, column, column < length, STRIDE, SIZE, BLOCK_D)
        seeds = tl.load(column_seeds + here + column, mask=column < length, other=0) if DROPOUT else column
        low, high, _, _ = reach_of(start, BLOCK_N, reach, first, last)
        dk, dv = receive_local(
            k, v, tl.where(column_kind == LOCAL, 0.0, UNSEEN), column, seeds, dk, dv,
            queries, gradient + here * WIDTH + head * SIZE, kind + here, lse + there, delta + there,
            row_seeds + there, low, high, reach, scale, keep_threshold, keep_scale,
            STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_M, True, PRECISION, DROPOUT,
        )  # fmt: skip
    results = dqkv + here * STRIDE + head * SIZE
    not_always_visible = (column < length) & ((column_kind != GLOBAL) | (column < outside))
    store_rows(results + WIDTH, column, not_always_visible, dk * plain_scale, STRIDE, SIZE, BLOCK_D)
    store_rows(results + 2 * WIDTH, column, not_always_visible, dv, STRIDE, SIZE, BLOCK_D)


@triton.jit(do_not_specialize=["length", "most_visible", "keep_threshold"])
def always_visible_keys_backward(
    qkv, kind, always_visible_keys, facts, row_seeds, column_seeds, gradient, lse, delta, dqkv, parts_left, arrivals,
    length, most_visible, scale, keep_threshold, keep_scale, plain_scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of the always visible keys (prefix and global tokens) from all local rows.

    As in `global_rows`, programs divide the keys or the rows; `parts_left` is [programs, 2, BLOCK_G, size].
    """
    WIDTH: tl.constexpr = HEADS * SIZE
    STRIDE: tl.constexpr = 3 * WIDTH
    HALF: tl.constexpr = BLOCK_G * BLOCK_D
    lane = tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    first, last = tl.load(facts + example * FACTS + FIRST), tl.load(facts + example * FACTS + LAST)
    count = tl.load(facts + example * FACTS + ALWAYS_VISIBLE)
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    shares = tl.num_programs(0)
    begin, part, parts = share_of(count, BLOCK_G)
    low, high = part_of(first, last, part, parts, BLOCK_M)
    place = tl.arange(0, BLOCK_G)
    inner = place[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    slab = parts_left + (lane.to(tl.int64) * shares + tl.program_id(0)) * 2 * HALF
    for tile in range(begin, tl.cdiv(count, BLOCK_G), shares):
        slot = tile * BLOCK_G + place
        inside = slot < count
        key_row = tl.load(always_visible_keys + example * most_visible + slot, mask=inside, other=0).to(tl.int64)
        k = load_rows(qkv + WIDTH + head * SIZE, key_row, inside, STRIDE, SIZE, BLOCK_D)
        v = load_rows(qkv + 2 * WIDTH + head * SIZE, key_row, inside, STRIDE, SIZE, BLOCK_D)
        seeds = tl.load(column_seeds + key_row) if DROPOUT else slot
        dk = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        dv = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        dk, dv = receive_local(
            k, v, tl.where(inside, 0.0, UNSEEN), slot, seeds, dk, dv,
            qkv + here * STRIDE + head * SIZE, gradient + here * WIDTH + head * SIZE, kind + here,
            lse + there, delta + there, row_seeds + there, low, high, 0, scale, keep_threshold, keep_scale,
            STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_M, False, PRECISION, DROPOUT,
        )  # fmt: skip
        finished = True
        if parts > 1:
            tl.store(slab + inner, dk)
            tl.store(slab + HALF + inner, dv)
            finished = is_last(arrivals + lane * shares + tile, parts)
            if finished:
                dk = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
                dv = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
                for other in range(0, parts):
                    left = parts_left + (lane.to(tl.int64) * shares + tile * parts + other) * 2 * HALF
                    dk += tl.load(left + inner, cache_modifier=".cg")
                    dv += tl.load(left + HALF + inner, cache_modifier=".cg")
        if finished:
            results = dqkv + head * SIZE
            store_rows(results + WIDTH, key_row, inside, dk * plain_scale, STRIDE, SIZE, BLOCK_D)
            store_rows(results + 2 * WIDTH, key_row, inside, dv, STRIDE, SIZE, BLOCK_D)


@triton.jit(do_not_specialize=["length", "prefix", "prefix_start", "outside", "keep_threshold"])
def global_keys_backward(
    qkv, kv_global, kind, tokens, facts, row_seeds, column_seeds, gradient, lse, delta, dkv_global,
    length, prefix, prefix_start, outside, scale, keep_threshold, keep_scale, plain_scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, KV_GLOBAL_STRIDE: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of all keys and values from the global rows; the last programs do the prefix. ADD: accumulate."""
    WIDTH: tl.constexpr = HEADS * SIZE
    tile, lane = tl.program_id(0), tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    here = example.to(tl.int64) * length
    queries = qkv + here * 3 * WIDTH + head * SIZE
    gradients = gradient + here * WIDTH + head * SIZE
    lse += lane.to(tl.int64) * length
    delta += lane.to(tl.int64) * length
    row_seeds += lane.to(tl.int64) * length
    tiles = tl.cdiv(length, BLOCK_N)
    if tile < tiles:
        place = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = place < length
        key_row = here + place
        seen = tl.load(kind + key_row, mask=inside & (place >= outside), other=MASKED) != MASKED
    else:
        place = (tile - tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = place < prefix
        key_row = (prefix_start + example * prefix + place).to(tl.int64)
        seen = inside
    k = load_rows(kv_global + head * SIZE, key_row, inside, KV_GLOBAL_STRIDE, SIZE, BLOCK_D)
    v = load_rows(kv_global + WIDTH + head * SIZE, key_row, inside, KV_GLOBAL_STRIDE, SIZE, BLOCK_D)
    column_seed = tl.load(column_seeds + key_row, mask=inside, other=0) if DROPOUT else place
    bias = tl.where(seen, 0.0, UNSEEN)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    count = tl.load(facts + example * FACTS + TOKENS)
    for start in range(0, count, BLOCK_G):
        slot = start + tl.arange(0, BLOCK_G)
        is_row = slot < count
        row = tl.load(tokens + example * (length + 1) + slot, mask=is_row, other=0)
        q = load_rows(queries, row, is_row, 3 * WIDTH, SIZE, BLOCK_D)
        upstream = load_rows(gradients, row, is_row, WIDTH, SIZE, BLOCK_D)
        row_lse = tl.load(lse + row, mask=is_row, other=-UNSEEN)
        row_delta = tl.load(delta + row, mask=is_row, other=0.0)
        seeds = tl.load(row_seeds + row) if DROPOUT else row
        scored = score(q, k, bias, scale, PRECISION)
        dk, dv = receive(
            scored, v, q, upstream, row_lse, row_delta, seeds, column_seed, dk, dv,
            keep_threshold, keep_scale, PRECISION, DROPOUT,
        )  # fmt: skip
    results = dkv_global + head * SIZE
    dk *= plain_scale
    if ADD:
        dk += load_rows(results, key_row, inside, KV_GLOBAL_STRIDE, SIZE, BLOCK_D).to(tl.float32)
        dv += load_rows(results + WIDTH, key_row, inside, KV_GLOBAL_STRIDE, SIZE, BLOCK_D).to(tl.float32)
    store_rows(results, key_row, inside, dk, KV_GLOBAL_STRIDE, SIZE, BLOCK_D)
    store_rows(results + WIDTH, key_row, inside, dv, KV_GLOBAL_STRIDE, SIZE, BLOCK_D)

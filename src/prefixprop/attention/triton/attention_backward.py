"""The keys' side: the gradients of keys and values."""

from __future__ import annotations

import triton
import triton.language as tl

from prefixprop.attention.triton.dropout import is_kept
from prefixprop.attention.triton.tiles import (
    FACTS,
    FIRST,
    GLOBAL,
    LAST,
    LISTED,
    LOCAL,
    MASKED,
    TOKENS,
    UNSEEN,
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
    scored, value, query, gradient, log_total, delta, row_words, column_words, for_key, for_value, least, growth,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """What a tile of rows gives to the gradients of a tile of keys and values."""
    weights = tl.exp2(scored - log_total[:, None])
    for_weights = tl.dot(gradient, tl.trans(value), input_precision=PRECISION)
    dropped = weights
    if DROPOUT:
        kept = is_kept(row_words[:, None], column_words[None, :], least)
        dropped = tl.where(kept, weights * growth, 0.0)
        for_weights = tl.where(kept, for_weights * growth, 0.0)
    for_value = tl.dot(tl.trans(dropped.to(gradient.dtype)), gradient, for_value, input_precision=PRECISION)
    # Softmax: dS = P (dP - Σ P dP)
    for_scores = weights * (for_weights - delta[:, None])
    for_key = tl.dot(tl.trans(for_scores.to(query.dtype)), query, for_key, input_precision=PRECISION)
    return for_key, for_value


@triton.jit
def receive_local(
    key, value, unseen, column, column_words, for_key, for_value,
    queries, gradients, kind, log_totals, deltas, row_words, low, high, reach,
    scale, least, growth,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BAND: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """What the local rows from `low` to `high` give; of a BAND, only rows in reach of a key."""
    for start in range(low, high, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        inside = row < high
        is_local = tl.load(kind + row, mask=inside, other=GLOBAL) == LOCAL
        query = load_rows(queries, row, inside, STRIDE, SIZE, BLOCK_D)
        gradient = load_rows(gradients, row, inside, WIDTH, SIZE, BLOCK_D)
        # A row that is not local has an endless total: its probabilities are zero.
        log_total = tl.load(log_totals + row, mask=is_local, other=-UNSEEN)
        delta = tl.load(deltas + row, mask=is_local, other=0.0)
        words = tl.load(row_words + row, mask=inside, other=0) if DROPOUT else row
        scored = score(query, key, unseen, scale, PRECISION)
        if BAND:  # for inner tiles too: asking whether one is inner costs more
            scored = tl.where(tl.abs(row[:, None] - column[None, :]) <= reach, scored, UNSEEN)
        for_key, for_value = receive(
            scored, value, query, gradient, log_total, delta, words, column_words, for_key, for_value,
            least, growth, PRECISION, DROPOUT,
        )  # fmt: skip
    return for_key, for_value


@triton.jit(do_not_specialize=["length", "outside", "reach", "least"])
def band_keys(
    near, kind, facts, row_words, column_words, gradient, log_totals, deltas, for_near,
    length, outside, reach, scale, least, growth, plain_scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """What keys and values get from their neighbourhood: zeros where it does not see them, nothing where listed."""
    WIDTH: tl.constexpr = HEADS * SIZE
    STRIDE: tl.constexpr = 3 * WIDTH
    start, lane = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    first, last = tl.load(facts + example * FACTS + FIRST), tl.load(facts + example * FACTS + LAST)
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    queries = near + here * STRIDE + head * SIZE
    column = start + tl.arange(0, BLOCK_N)
    column_kind = tl.load(kind + here + column, mask=column < length, other=GLOBAL)
    for_key = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for_value = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if (start < last) & (start + BLOCK_N > first):  # else it is all padding
        key = load_rows(queries + WIDTH, column, column < length, STRIDE, SIZE, BLOCK_D)
        value = load_rows(queries + 2 * WIDTH, column, column < length, STRIDE, SIZE, BLOCK_D)
        words = tl.load(column_words + here + column, mask=column < length, other=0) if DROPOUT else column
        low, high, _, _ = reach_of(start, BLOCK_N, reach, first, last)
        for_key, for_value = receive_local(
            key, value, tl.where(column_kind == LOCAL, 0.0, UNSEEN), column, words, for_key, for_value,
            queries, gradient + here * WIDTH + head * SIZE, kind + here, log_totals + there, deltas + there,
            row_words + there, low, high, reach, scale, least, growth,
            STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_M, True, PRECISION, DROPOUT,
        )  # fmt: skip
    results = for_near + here * STRIDE + head * SIZE
    not_listed = (column < length) & ((column_kind != GLOBAL) | (column < outside))
    store_rows(results + WIDTH, column, not_listed, for_key * plain_scale, STRIDE, SIZE, BLOCK_D)
    store_rows(results + 2 * WIDTH, column, not_listed, for_value, STRIDE, SIZE, BLOCK_D)


@triton.jit(do_not_specialize=["length", "most_listed", "least"])
def listed_keys(
    near, kind, listed, facts, row_words, column_words, gradient, log_totals, deltas, for_near, parts_left, arrivals,
    length, most_listed, scale, least, growth, plain_scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """What the listed keys (prefix and global tokens) get from the local rows, all of which see them.

    As in `global_rows`, programs divide the keys or the rows; `parts_left` is [programs, 2, BLOCK_G, size].
    """
    WIDTH: tl.constexpr = HEADS * SIZE
    STRIDE: tl.constexpr = 3 * WIDTH
    HALF: tl.constexpr = BLOCK_G * BLOCK_D
    lane = tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    first, last = tl.load(facts + example * FACTS + FIRST), tl.load(facts + example * FACTS + LAST)
    count = tl.load(facts + example * FACTS + LISTED)
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
        key_row = tl.load(listed + example * most_listed + slot, mask=inside, other=0).to(tl.int64)
        key = load_rows(near + WIDTH + head * SIZE, key_row, inside, STRIDE, SIZE, BLOCK_D)
        value = load_rows(near + 2 * WIDTH + head * SIZE, key_row, inside, STRIDE, SIZE, BLOCK_D)
        words = tl.load(column_words + key_row) if DROPOUT else slot
        for_key = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        for_value = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        for_key, for_value = receive_local(
            key, value, tl.where(inside, 0.0, UNSEEN), slot, words, for_key, for_value,
            near + here * STRIDE + head * SIZE, gradient + here * WIDTH + head * SIZE, kind + here,
            log_totals + there, deltas + there, row_words + there, low, high, 0, scale, least, growth,
            STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_M, False, PRECISION, DROPOUT,
        )  # fmt: skip
        finished = True
        if parts > 1:
            tl.store(slab + inner, for_key)
            tl.store(slab + HALF + inner, for_value)
            finished = is_last(arrivals + lane * shares + tile, parts)
            if finished:
                for_key = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
                for_value = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
                for other in range(0, parts):
                    left = parts_left + (lane.to(tl.int64) * shares + tile * parts + other) * 2 * HALF
                    for_key += tl.load(left + inner, cache_modifier=".cg")
                    for_value += tl.load(left + HALF + inner, cache_modifier=".cg")
        if finished:
            results = for_near + head * SIZE
            store_rows(results + WIDTH, key_row, inside, for_key * plain_scale, STRIDE, SIZE, BLOCK_D)
            store_rows(results + 2 * WIDTH, key_row, inside, for_value, STRIDE, SIZE, BLOCK_D)


@triton.jit(do_not_specialize=["length", "prefix", "prefix_start", "outside", "least"])
def far_keys(
    near, far, kind, tokens, facts, row_words, column_words, gradient, log_totals, deltas, for_far,
    length, prefix, prefix_start, outside, scale, least, growth, plain_scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, FAR_STRIDE: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """What all keys and values get from the global rows; the last programs have the prefix. ADD: to what is there."""
    WIDTH: tl.constexpr = HEADS * SIZE
    tile, lane = tl.program_id(0), tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    here = example.to(tl.int64) * length
    queries = near + here * 3 * WIDTH + head * SIZE
    gradients = gradient + here * WIDTH + head * SIZE
    log_totals += lane.to(tl.int64) * length
    deltas += lane.to(tl.int64) * length
    row_words += lane.to(tl.int64) * length
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
    key = load_rows(far + head * SIZE, key_row, inside, FAR_STRIDE, SIZE, BLOCK_D)
    value = load_rows(far + WIDTH + head * SIZE, key_row, inside, FAR_STRIDE, SIZE, BLOCK_D)
    column_word = tl.load(column_words + key_row, mask=inside, other=0) if DROPOUT else place
    bias = tl.where(seen, 0.0, UNSEEN)
    for_key = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for_value = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    count = tl.load(facts + example * FACTS + TOKENS)
    for start in range(0, count, BLOCK_G):
        slot = start + tl.arange(0, BLOCK_G)
        is_row = slot < count
        row = tl.load(tokens + example * (length + 1) + slot, mask=is_row, other=0)
        query = load_rows(queries, row, is_row, 3 * WIDTH, SIZE, BLOCK_D)
        upstream = load_rows(gradients, row, is_row, WIDTH, SIZE, BLOCK_D)
        log_total = tl.load(log_totals + row, mask=is_row, other=-UNSEEN)
        delta = tl.load(deltas + row, mask=is_row, other=0.0)
        words = tl.load(row_words + row) if DROPOUT else row
        scored = score(query, key, bias, scale, PRECISION)
        for_key, for_value = receive(
            scored, value, query, upstream, log_total, delta, words, column_word, for_key, for_value,
            least, growth, PRECISION, DROPOUT,
        )  # fmt: skip
    results = for_far + head * SIZE
    for_key *= plain_scale
    if ADD:
        for_key += load_rows(results, key_row, inside, FAR_STRIDE, SIZE, BLOCK_D).to(tl.float32)
        for_value += load_rows(results + WIDTH, key_row, inside, FAR_STRIDE, SIZE, BLOCK_D).to(tl.float32)
    store_rows(results, key_row, inside, for_key, FAR_STRIDE, SIZE, BLOCK_D)
    store_rows(results + WIDTH, key_row, inside, for_value, FAR_STRIDE, SIZE, BLOCK_D)

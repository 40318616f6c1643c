"""Attention itself (forward), and the gradient of its queries (BACKWARD), which visits the same keys."""

from __future__ import annotations

import triton
import triton.language as tl

from prefixprop.attention.triton.shared import (
    ALWAYS_VISIBLE,
    FACTS,
    FIRST,
    GLOBAL,
    LAST,
    LEADING,
    LOCAL,
    TOKENS,
    UNSEEN,
    is_last,
    load_rows,
    part_of,
    reach_of,
    share_of,
    store_rows,
    visit_rows,
    visit_sequence,
)


@triton.jit
def start_rows(
    q, gradients, outputs, lse, delta, row, is_row, keeps_delta,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """The upstream gradient of rows, and what they carry from tile to tile (see shared)."""
    if BACKWARD:
        gradient = load_rows(gradients, row, is_row, WIDTH, SIZE, BLOCK_D)
        output = load_rows(outputs, row, is_row, WIDTH, SIZE, BLOCK_D)
        # Other rows get an infinite lse, so that their probabilities are zero.
        carried = tl.load(lse + row, mask=is_row, other=-UNSEEN)
        carried_too = tl.sum(output.to(tl.float32) * gradient.to(tl.float32), axis=1)  # Σ dO O, which is Σ P dP
        if keeps_delta:
            tl.store(delta + row, carried_too, mask=is_row)
    else:
        gradient = q
        carried = tl.zeros([BLOCK], tl.float32)
        carried_too = tl.full([BLOCK], UNSEEN, tl.float32)
    return gradient, carried, carried_too


@triton.jit(do_not_specialize=["length"])
def row_deltas(
    output, gradient, delta, length,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """delta = Σ dO O of all rows (see start_rows), where the gradient of their queries is not needed."""
    WIDTH: tl.constexpr = HEADS * SIZE
    lane = tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < length
    place = example.to(tl.int64) * length * WIDTH + head * SIZE
    upstream = load_rows(gradient + place, row, inside, WIDTH, SIZE, BLOCK_D).to(tl.float32)
    attended = load_rows(output + place, row, inside, WIDTH, SIZE, BLOCK_D).to(tl.float32)
    tl.store(delta + lane.to(tl.int64) * length + row, tl.sum(attended * upstream, axis=1), mask=inside)


@triton.jit(do_not_specialize=["length", "most_visible", "reach", "keep_threshold"])
def local_rows(
    qkv, kind, always_visible_keys, facts, row_seeds, column_seeds, output, lse, delta, gradient, dqkv,
    length, most_visible, reach, scale, keep_threshold, keep_scale, plain_scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Local rows see the always visible keys (prefix and global tokens) and their neighbourhood.

    Forward leaves out global rows and writes zeros for padding; backward writes zeros for both.
    """
    WIDTH: tl.constexpr = HEADS * SIZE
    STRIDE: tl.constexpr = 3 * WIDTH
    start, lane = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    first, last = tl.load(facts + example * FACTS + FIRST), tl.load(facts + example * FACTS + LAST)
    leading = tl.load(facts + example * FACTS + LEADING)
    if not BACKWARD:  # which writes zeros for global rows; here the last tile is empty where a prefix leads
        start += leading
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    queries = qkv + here * STRIDE + head * SIZE
    outputs = output + here * WIDTH + head * SIZE
    row = start + tl.arange(0, BLOCK_M)
    row_kind = tl.load(kind + here + row, mask=row < length, other=GLOBAL)
    is_local = row_kind == LOCAL
    q = load_rows(queries, row, row < length, STRIDE, SIZE, BLOCK_D)
    seeds = tl.load(row_seeds + there + row, mask=row < length, other=0) if DROPOUT else row
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    upstream, carried, carried_too = start_rows(
        q, gradient + here * WIDTH + head * SIZE, outputs, lse + there, delta + there, row, is_local,
        True, WIDTH, SIZE, BLOCK_D, BLOCK_M, BACKWARD,
    )  # fmt: skip
    if (start < last) & (start + BLOCK_M > first):  # else it is all padding
        result, carried, carried_too = visit_rows(
            q, upstream, result, carried, carried_too, seeds, qkv + WIDTH + head * SIZE, column_seeds,
            always_visible_keys + example * most_visible, tl.load(facts + example * FACTS + ALWAYS_VISIBLE),
            scale, keep_threshold, keep_scale, STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_G, PRECISION, DROPOUT, BACKWARD,
        )  # fmt: skip
        low, high, inner_low, inner_high = reach_of(start, BLOCK_M, reach, tl.maximum(first, leading), last)
        result, carried, carried_too = visit_sequence(
            q, upstream, result, carried, carried_too, seeds, row, queries + WIDTH, column_seeds + here,
            kind + here, low, high, inner_low, inner_high, 0, reach, scale, keep_threshold, keep_scale,
            STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_N, True, PRECISION, DROPOUT, BACKWARD,
        )  # fmt: skip
    if BACKWARD:
        result = tl.where(is_local[:, None], result * plain_scale, 0.0)
        store_rows(dqkv + here * STRIDE + head * SIZE, row, row < length, result, STRIDE, SIZE, BLOCK_D)
    else:
        total = tl.where(is_local, carried, 1.0)
        result = tl.where(is_local[:, None], result * (keep_scale / total)[:, None], 0.0)
        store_rows(outputs, row, row_kind != GLOBAL, result, WIDTH, SIZE, BLOCK_D)
        tl.store(lse + there + row, carried_too + tl.log2(total), mask=is_local)


@triton.jit(do_not_specialize=["length", "most_visible", "prefix", "outside", "keep_threshold"])
def global_rows(
    qkv, kv_global, kind, tokens, always_visible_keys, facts, row_seeds, column_seeds, output, lse, delta, gradient,
    dq_global, parts_left, arrivals, length, most_visible, prefix, outside, scale, keep_threshold, keep_scale,
    plain_scale, HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr,
    KV_GLOBAL_STRIDE: tl.constexpr, WRITTEN_STRIDE: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Rows of global tokens see every token and the prefix, through the keys and values in `kv_global`.

    How many there are is known on the device alone. The programs of an example's head divide them and, where they
    are few, the keys; who is last puts the parts together, which stand in `parts_left` [programs, BLOCK_G, size + 2].
    """
    WIDTH: tl.constexpr = HEADS * SIZE
    SLAB: tl.constexpr = BLOCK_G * (BLOCK_D + 2)
    lane = tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    first, last = tl.load(facts + example * FACTS + FIRST), tl.load(facts + example * FACTS + LAST)
    count = tl.load(facts + example * FACTS + TOKENS)
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    outputs = output + here * WIDTH + head * SIZE
    shares = tl.num_programs(0)
    begin, part, parts = share_of(count, BLOCK_G)
    low, high = part_of(first, last, part, parts, BLOCK_N)
    slab = parts_left + (lane.to(tl.int64) * shares + tl.program_id(0)) * SLAB
    place, dimension = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    for tile in range(begin, tl.cdiv(count, BLOCK_G), shares):
        slot = tile * BLOCK_G + place
        is_row = slot < count
        row = tl.load(tokens + example * (length + 1) + slot, mask=is_row, other=0)
        q = load_rows(qkv + here * 3 * WIDTH + head * SIZE, row, is_row, 3 * WIDTH, SIZE, BLOCK_D)
        seeds = tl.load(row_seeds + there + row) if DROPOUT else row
        result = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        upstream, carried, carried_too = start_rows(
            q, gradient + here * WIDTH + head * SIZE, outputs, lse + there, delta + there, row, is_row,
            part == 0, WIDTH, SIZE, BLOCK_D, BLOCK_G, BACKWARD,
        )  # fmt: skip
        # The prefix comes first among the always visible keys; the first part visits it.
        result, carried, carried_too = visit_rows(
            q, upstream, result, carried, carried_too, seeds, kv_global + head * SIZE, column_seeds,
            always_visible_keys + example * most_visible, tl.where(part == 0, prefix, 0),
            scale, keep_threshold, keep_scale,
            KV_GLOBAL_STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_G, PRECISION, DROPOUT, BACKWARD,
        )  # fmt: skip
        result, carried, carried_too = visit_sequence(
            q, upstream, result, carried, carried_too, seeds, row, kv_global + here * KV_GLOBAL_STRIDE + head * SIZE,
            column_seeds + here, kind + here, low, high, 0, 0, outside, 0, scale, keep_threshold, keep_scale,
            KV_GLOBAL_STRIDE, WIDTH, SIZE, BLOCK_D, BLOCK_N, False, PRECISION, DROPOUT, BACKWARD,
        )  # fmt: skip
        # Each branch writes for itself: Triton 3.8 and 3.9 fail to compile tensors that come out of nested branches.
        written = dq_global if BACKWARD else output
        rows = written + here * WRITTEN_STRIDE + head * SIZE
        if parts == 1:
            finish_rows(
                result, carried, carried_too, rows, lse + there, row, is_row, keep_scale, plain_scale,
                WRITTEN_STRIDE, SIZE, BLOCK_D, BACKWARD,
            )  # fmt: skip
        else:
            tl.store(slab + place[:, None] * BLOCK_D + dimension[None, :], result)
            tl.store(slab + BLOCK_G * BLOCK_D + place, carried)
            tl.store(slab + BLOCK_G * (BLOCK_D + 1) + place, carried_too)
            if is_last(arrivals + lane * shares + tile, parts):
                summed = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
                total = tl.zeros([BLOCK_G], tl.float32)
                highest = tl.full([BLOCK_G], UNSEEN, tl.float32)
                for other in range(0, parts):
                    left = parts_left + (lane.to(tl.int64) * shares + tile * parts + other) * SLAB
                    theirs = tl.load(left + place[:, None] * BLOCK_D + dimension[None, :], cache_modifier=".cg")
                    if BACKWARD:
                        summed += theirs
                    else:
                        their_total = tl.load(left + BLOCK_G * BLOCK_D + place, cache_modifier=".cg")
                        their_highest = tl.load(left + BLOCK_G * (BLOCK_D + 1) + place, cache_modifier=".cg")
                        new = tl.maximum(highest, their_highest)
                        shrink, grow = tl.exp2(highest - new), tl.exp2(their_highest - new)
                        summed = summed * shrink[:, None] + theirs * grow[:, None]
                        total = total * shrink + their_total * grow
                        highest = new
                finish_rows(
                    summed, total, highest, rows, lse + there, row, is_row, keep_scale, plain_scale,
                    WRITTEN_STRIDE, SIZE, BLOCK_D, BACKWARD,
                )  # fmt: skip


@triton.jit
def finish_rows(
    result, total, highest, rows, lse, row, is_row, keep_scale, plain_scale,
    STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Write the result of rows that have visited all keys, and in forward their lse."""
    if BACKWARD:
        store_rows(rows, row, is_row, result * plain_scale, STRIDE, SIZE, BLOCK_D)
    else:
        store_rows(rows, row, is_row, result * (keep_scale / total)[:, None], STRIDE, SIZE, BLOCK_D)
        tl.store(lse + row, highest + tl.log2(total), mask=is_row)


@triton.jit(do_not_specialize=["length"])
def project_rows(
    states, weight, bias, tokens, facts, result, length,
    WIDTH: tl.constexpr, INNER: tl.constexpr, STRIDE: tl.constexpr, RESULT_STRIDE: tl.constexpr,
    WEIGHT_EXAMPLE: tl.constexpr, WEIGHT_ROW: tl.constexpr, WEIGHT_COLUMN: tl.constexpr, ADD: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A linear map of the global rows only: result = states Wᵀ + b; with ADD, result += states Wᵀ."""
    example = tl.program_id(1)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    count = tl.load(facts + example * FACTS + TOKENS)
    weight += example * WEIGHT_EXAMPLE
    for tile in range(tl.program_id(2) * BLOCK_G, count, tl.num_programs(2) * BLOCK_G):
        slot = tile + tl.arange(0, BLOCK_G)
        is_row = slot < count
        row = tl.load(tokens + example * (length + 1) + slot, mask=is_row, other=0)
        here = (example.to(tl.int64) * length + row)[:, None]
        summed = tl.zeros([BLOCK_G, BLOCK_C], tl.float32)
        for start in range(0, INNER, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            mask = is_row[:, None] & (inner < INNER)[None, :]
            left = tl.load(states + here * STRIDE + inner[None, :], mask=mask, other=0.0)
            mask = (column < WIDTH)[:, None] & (inner < INNER)[None, :]
            right = tl.load(
                weight + column[:, None] * WEIGHT_ROW + inner[None, :] * WEIGHT_COLUMN, mask=mask, other=0.0
            )
            summed = tl.dot(left, tl.trans(right), summed, input_precision=PRECISION)
        mask = is_row[:, None] & (column < WIDTH)[None, :]
        place = result + here * RESULT_STRIDE + column[None, :]
        if ADD:
            summed += tl.load(place, mask=mask, other=0.0).to(tl.float32)
        else:
            summed += tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
        tl.store(place, summed.to(result.dtype.element_ty), mask=mask)

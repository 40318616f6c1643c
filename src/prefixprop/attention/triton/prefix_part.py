"""Attention to the prefix rows outside the softmax (Eq. 3): α · Σ k(q, k_p) v_p / Σ k(q, k_p), added to the rows.

The `outside` prefix rows at the front are in no softmax; global rows see them through their own keys and values. The
weights are never stored: backward computes them again.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart, LayerPrefix
from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.launch_attention import AttentionGradients, AttentionInputs, Shape
from prefixprop.attention.triton.shared import (
    GLOBAL,
    MASKED,
    UNSEEN,
    TritonKernel,
    is_kept,
    load_rows,
    score,
    store_rows,
)

# A program holds all prefix rows. Of a GPU's shared memory it takes at most SHARED bytes, plus SHARED_OVER_KEYS for
# every byte of their keys; compiled for sm_90.
SHARED, SHARED_OVER_KEYS = 48 * 1024, 10
SHARES = 8  # programs that divide the rows of an example's head, where they add up gradients of the prefix
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)  # the smallest total that similarities are divided by
LOGARITHMIC = ("exp", "rbf")  # kernels that are the exponential of something


def can_fuse(prefix: LayerPrefix, pattern: AttentionPattern, size: int, states: Tensor) -> bool:
    """Whether the kernels compute all of attention: they support rows of the sequence outside the softmax, but not
    trained keys outside of it, and no custom kernels."""
    return prefix.part is None or (prefix.fused is not None and fits(pattern.rows_outside_softmax, size, states))


def fits(rows: int, size: int, states: Tensor) -> bool:
    """Whether a program can hold this many prefix rows."""
    held = SHARED + SHARED_OVER_KEYS * _power(rows) * _power(size) * states.element_size()
    return rows > 0 and held <= _shared_memory(states.device)


@lru_cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have; those of an H100 where kernels are interpreted."""
    if device.type != "cuda":
        return 232_448
    properties: Any = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin


def add_part(rows: Tensor, given: AttentionInputs, part: FusedPart) -> Tensor:
    """`rows`, the output of the softmax part, plus the attention to the prefix rows; padding stays zero."""
    qkv, kv_global, pattern, seeds, shape = given
    keys = qkv if kv_global is None else kv_global  # then no row of the pattern is global
    batch, length = pattern.kind.shape
    constants = _constants(shape, qkv, part)
    summed = torch.empty_like(rows)
    _PREFIX_PART(
        (-(-length // constants["BLOCK_M"]), batch * shape.heads),
        (qkv, keys, pattern.kind, *seeds, _trained(part, qkv), rows, summed),
        (length, shape.outside, *_factors(shape, part)),
        **constants,
    )
    return summed


def add_gradients(
    gradient: Tensor, given: AttentionInputs, part: FusedPart, results: AttentionGradients
) -> Tensor | None:
    """Add to `results`, the gradients of qkv, kv_global and the global rows' queries, what comes through `add_part`.

    Returns the gradient of the trained α, if there is one.
    """
    qkv, kv_global, pattern, seeds, shape = given
    keys = qkv if kv_global is None else kv_global  # then no row of the pattern is global
    batch, length = pattern.kind.shape
    dqkv, dkv_global, dq_global = results
    constants = _constants(shape, qkv, part)
    tile = (constants["BLOCK_J"], constants["BLOCK_D"])
    parts = qkv.new_empty(SHARES, batch, shape.heads, 4, *tile, dtype=torch.float32)
    alpha_parts = qkv.new_empty(SHARES * batch, shape.heads, tile[1], dtype=torch.float32)
    _PREFIX_PART_BACKWARD(
        (SHARES, batch * shape.heads),
        (qkv, keys, pattern.kind, *seeds, _trained(part, qkv), gradient, dqkv, dq_global, parts, alpha_parts),
        (length, shape.outside, *_factors(shape, part)),
        SHARES=SHARES,
        # With loads ahead of the loop, Triton 3.6 gives other gradients on Hopper, in 16 bits and tiles of 64 rows.
        num_stages=1,
        **constants,
    )
    summed = parts.sum(dim=0)[..., : shape.outside, : shape.size]
    summed = summed.permute(0, 3, 2, 1, 4).flatten(3)  # [batch, j, 4, W]
    dqkv.view(batch, length, 3, -1)[:, : shape.outside, 1:] += summed[:, :, :2]
    dkv_global.view(batch, length, 2, -1)[:, : shape.outside] += summed[:, :, 2:]
    if part.trained is None:
        return None
    d_alpha = alpha_parts.sum(dim=0)
    return d_alpha[:, 0] if part.trained.dim() == 1 else d_alpha[:, : shape.size]


def _trained(part: FusedPart, qkv: Tensor) -> Tensor:
    return qkv if part.trained is None else part.trained  # kernels need an address, which they do not read


def _factors(shape: Shape, part: FusedPart) -> tuple[float, ...]:
    """Scales of scores (for exp2 if logarithmic) and of their gradient, offset, dropout's numbers, α, and 1/√d."""
    scale = part.scale * math.log2(math.e) if part.kernel in LOGARITHMIC else part.scale
    _, keep_threshold, keep_scale, root = launch_attention.factors(shape)
    return scale, part.scale, part.offset, keep_threshold, keep_scale, part.alpha, root


def _constants(shape: Shape, qkv: Tensor, part: FusedPart) -> dict[str, Any]:
    return {
        "HEADS": shape.heads,
        "SIZE": shape.size,
        "BLOCK_D": _power(shape.size),
        "BLOCK_M": 16 if INTERPRETED else 64 if qkv.element_size() * shape.size <= 128 else 32,
        "BLOCK_J": _power(shape.outside),
        "KERNEL": part.kernel,
        "DEGREE": part.degree,
        "ALPHA": "fixed" if part.trained is None else ("head", "query")[part.trained.dim() - 1],
        "PRECISION": launch_attention.precision(qkv.dtype),
        "DROPOUT": shape.dropout > 0,
    }


def _power(count: int) -> int:
    """The next power of 2, and at least 16, as tensor cores need."""
    return max(16, 1 << (count - 1).bit_length())


@triton.jit
def _features(rows, scale, SIZE: tl.constexpr, BLOCK_D: tl.constexpr):
    """elu(x) + 1 of the kernel `linear`; its slope is the smaller of this and 1."""
    scaled = rows.to(tl.float32) * scale
    grown = tl.where(scaled > 0, scaled + 1, tl.exp(tl.minimum(scaled, 0.0)))
    return tl.where((tl.arange(0, BLOCK_D) < SIZE)[None, :], grown, 0.0)


@triton.jit
def _weights(
    q, k, inside, scale, offset,
    SIZE: tl.constexpr, BLOCK_D: tl.constexpr, KERNEL: tl.constexpr, DEGREE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The kernel's weight of each prefix row for each query, its derivative by their score, and whether the weights
    are normalised: if all similarities are zero, the weights are zero."""
    if KERNEL == "exp" or KERNEL == "rbf":
        bias = tl.where(inside, 0.0, UNSEEN)
        if KERNEL == "rbf":  # the query's own length is the same for all keys, so it cancels
            exact = k.to(tl.float32)
            bias -= tl.sum(exact * exact, axis=1) * (0.5 * scale)
        scored = score(q, k, bias, scale, PRECISION)
        grown = tl.exp2(scored - tl.max(scored, axis=1)[:, None])
        total = tl.sum(grown, axis=1)
        weights = grown / total[:, None]
        slope = weights
    else:
        if KERNEL == "poly":
            base = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + offset
            base = tl.where(inside[None, :], base, 0.0)
            largest = tl.maximum(tl.max(tl.abs(base), axis=1), TINY)[:, None]
            base = base / largest  # so that no power overflows; the weights are the same
            slope = base
            for _ in tl.static_range(DEGREE - 2):
                slope *= base
            similarity = slope * base
            slope *= DEGREE / largest
        else:
            mine, theirs = _features(q, scale, SIZE, BLOCK_D), _features(k, scale, SIZE, BLOCK_D)
            similarity = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION)
            slope = tl.where(inside[None, :], tl.full(similarity.shape, 1.0, tl.float32), 0.0)
            similarity = similarity * slope
        total = tl.sum(similarity, axis=1)
        divisor = tl.maximum(total, TINY)
        weights = similarity / divisor[:, None]
        slope = slope / divisor[:, None]
    return weights, slope, total >= TINY


@triton.jit
def _alpha(
    q, trained, alpha, root,
    SIZE: tl.constexpr, BLOCK_D: tl.constexpr, ALPHA: tl.constexpr,
):  # fmt: skip
    """α of each row; for ALPHA query, its derivative by ⟨w, q⟩ / √d, and w / √d. `trained` is the head's own."""
    dimension = tl.arange(0, BLOCK_D)
    if ALPHA == "query":
        vector = tl.load(trained + dimension, mask=dimension < SIZE, other=0.0).to(tl.float32) * root
        share = tl.sigmoid(tl.sum(q.to(tl.float32) * vector[None, :], axis=1))
        rate = 2 * alpha * share
        slope = rate * (1 - share)
    else:
        vector = tl.zeros([BLOCK_D], tl.float32)
        rate = tl.zeros([q.shape[0]], tl.float32) + (tl.load(trained) if ALPHA == "head" else alpha)
        slope = rate
    return rate, slope, vector


@triton.jit
def _attended(
    q, keys, seeds, column_seeds, count, scale, offset, keep_threshold, keep_scale,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_J: tl.constexpr,
    KERNEL: tl.constexpr, DEGREE: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, BLOCK_J)
    inside = place < count
    k = load_rows(keys, place, inside, STRIDE, SIZE, BLOCK_D)
    v = load_rows(keys + WIDTH, place, inside, STRIDE, SIZE, BLOCK_D)
    weights, _, _ = _weights(q, k, inside, scale, offset, SIZE, BLOCK_D, KERNEL, DEGREE, PRECISION)
    if DROPOUT:
        column = tl.load(column_seeds + place, mask=inside, other=0)
        weights = tl.where(is_kept(seeds[:, None], column[None, :], keep_threshold), weights * keep_scale, 0.0)
    return tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)


@triton.jit(do_not_specialize=["length", "count", "keep_threshold"])
def _prefix_part(
    qkv, kv_global, kind, row_seeds, column_seeds, trained, rows, summed,
    length, count, scale, plain_scale, offset, keep_threshold, keep_scale, alpha, root,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_J: tl.constexpr,
    KERNEL: tl.constexpr, DEGREE: tl.constexpr, ALPHA: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = HEADS * SIZE
    lane = tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    queries = qkv + here * 3 * WIDTH + head * SIZE
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_kind = tl.load(kind + here + row, mask=row < length, other=MASKED)
    q = load_rows(queries, row, row < length, 3 * WIDTH, SIZE, BLOCK_D)
    seeds = tl.load(row_seeds + there + row, mask=row < length, other=0) if DROPOUT else row
    added = _attended(
        q, queries + WIDTH, seeds, column_seeds + here, count, scale, offset, keep_threshold, keep_scale,
        3 * WIDTH, WIDTH, SIZE, BLOCK_D, BLOCK_J, KERNEL, DEGREE, PRECISION, DROPOUT,
    )  # fmt: skip
    if tl.max((row_kind == GLOBAL).to(tl.int32), axis=0) > 0:
        theirs = _attended(
            q, kv_global + here * 2 * WIDTH + head * SIZE, seeds, column_seeds + here, count, scale, offset,
            keep_threshold, keep_scale, 2 * WIDTH, WIDTH, SIZE, BLOCK_D, BLOCK_J, KERNEL, DEGREE, PRECISION, DROPOUT,
        )  # fmt: skip
        added = tl.where((row_kind == GLOBAL)[:, None], theirs, added)
    own = trained + head * (SIZE if ALPHA == "query" else 1)
    rate, _, _ = _alpha(q, own, alpha, root, SIZE, BLOCK_D, ALPHA)
    place = here * WIDTH + head * SIZE
    result = load_rows(rows + place, row, row < length, WIDTH, SIZE, BLOCK_D).to(tl.float32)
    result += tl.where((row_kind != MASKED)[:, None], added * rate[:, None], 0.0)
    store_rows(summed + place, row, row < length, result, WIDTH, SIZE, BLOCK_D)


@triton.jit
def _differentiate(
    q, upstream, rate, keys, seeds, column_seeds, count, scale, plain_scale, offset, keep_threshold, keep_scale,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_J: tl.constexpr,
    KERNEL: tl.constexpr, DEGREE: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries, of the prefix rows' keys and values, and of α, from the rows' gradient `upstream`."""
    place = tl.arange(0, BLOCK_J)
    inside = place < count
    k = load_rows(keys, place, inside, STRIDE, SIZE, BLOCK_D)
    v = load_rows(keys + WIDTH, place, inside, STRIDE, SIZE, BLOCK_D)
    weights, slope, normalised = _weights(q, k, inside, scale, offset, SIZE, BLOCK_D, KERNEL, DEGREE, PRECISION)
    dp = tl.dot(upstream, tl.trans(v), input_precision=PRECISION)
    used = weights
    if DROPOUT:
        column = tl.load(column_seeds + place, mask=inside, other=0)
        kept = is_kept(seeds[:, None], column[None, :], keep_threshold)
        used = tl.where(kept, weights * keep_scale, 0.0)
        dp = tl.where(kept, dp * keep_scale, 0.0)
    d_rate = tl.sum(weights * dp, axis=1)
    ds = slope * (dp - tl.where(normalised, d_rate, 0.0)[:, None]) * rate[:, None]
    if KERNEL == "linear":
        mine, theirs = _features(q, plain_scale, SIZE, BLOCK_D), _features(k, plain_scale, SIZE, BLOCK_D)
        dq_part = tl.dot(ds, theirs, input_precision=PRECISION) * tl.minimum(mine, 1.0) * plain_scale
        dk_part = tl.dot(tl.trans(ds), mine, input_precision=PRECISION)
        dk_part = dk_part * tl.minimum(theirs, 1.0) * plain_scale
    else:
        ds = (ds * plain_scale).to(q.dtype)
        dq_part = tl.dot(ds, k, input_precision=PRECISION)
        dk_part = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
        if KERNEL == "rbf":
            dk_part -= tl.sum(ds.to(tl.float32), axis=0)[:, None] * k.to(tl.float32)
    used = (used * rate[:, None]).to(q.dtype)
    return dq_part, dk_part, tl.dot(tl.trans(used), upstream, input_precision=PRECISION), d_rate


@triton.jit(do_not_specialize=["length", "count", "keep_threshold"])
def _prefix_part_backward(
    qkv, kv_global, kind, row_seeds, column_seeds, trained, gradient, dqkv, dq_global, parts, alpha_parts,
    length, count, scale, plain_scale, offset, keep_threshold, keep_scale, alpha, root,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_J: tl.constexpr,
    KERNEL: tl.constexpr, DEGREE: tl.constexpr, ALPHA: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
    SHARES: tl.constexpr,
):  # fmt: skip
    """Every program leaves its sums in `parts` [SHARES, lanes, 4, BLOCK_J, BLOCK_D], and those for α in `alpha_parts`
    [SHARES, lanes, BLOCK_D]; adding them up as they arrive would give different bits each time."""
    WIDTH: tl.constexpr = HEADS * SIZE
    share, lane = tl.program_id(0), tl.program_id(1)
    example, head = lane // HEADS, lane % HEADS
    here, there = example.to(tl.int64) * length, lane.to(tl.int64) * length
    queries = qkv + here * 3 * WIDTH + head * SIZE
    own = trained + head * (SIZE if ALPHA == "query" else 1)
    dimension = tl.arange(0, BLOCK_D)
    dk = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    dk_global = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    dv_global = tl.zeros([BLOCK_J, BLOCK_D], tl.float32)
    d_alpha = tl.zeros([BLOCK_D], tl.float32)
    for start in range(share * BLOCK_M, length, SHARES * BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        row_kind = tl.load(kind + here + row, mask=row < length, other=MASKED)
        is_global, is_local = row_kind == GLOBAL, (row_kind != GLOBAL) & (row_kind != MASKED)
        q = load_rows(queries, row, row < length, 3 * WIDTH, SIZE, BLOCK_D)
        seeds = tl.load(row_seeds + there + row, mask=row < length, other=0) if DROPOUT else row
        upstream = load_rows(gradient + here * WIDTH + head * SIZE, row, row < length, WIDTH, SIZE, BLOCK_D)
        upstream = upstream.to(q.dtype)
        rate, rate_slope, vector = _alpha(q, own, alpha, root, SIZE, BLOCK_D, ALPHA)
        dq_part, dk_part, dv_part, d_rate = _differentiate(
            q, tl.where(is_local[:, None], upstream, 0.0).to(q.dtype), rate, queries + WIDTH, seeds,
            column_seeds + here, count, scale, plain_scale, offset, keep_threshold, keep_scale,
            3 * WIDTH, WIDTH, SIZE, BLOCK_D, BLOCK_J, KERNEL, DEGREE, PRECISION, DROPOUT,
        )  # fmt: skip
        dk += dk_part
        dv += dv_part
        dq_part, by_alpha = _through_alpha(dq_part, d_rate, rate_slope, q, vector, root, BLOCK_D, ALPHA)
        d_alpha += by_alpha
        target = dqkv + here * 3 * WIDTH + head * SIZE
        dq_part += load_rows(target, row, is_local, 3 * WIDTH, SIZE, BLOCK_D).to(tl.float32)
        store_rows(target, row, is_local, dq_part, 3 * WIDTH, SIZE, BLOCK_D)
        if tl.max(is_global.to(tl.int32), axis=0) > 0:
            dq_part, dk_part, dv_part, d_rate = _differentiate(
                q, tl.where(is_global[:, None], upstream, 0.0).to(q.dtype), rate,
                kv_global + here * 2 * WIDTH + head * SIZE, seeds,
                column_seeds + here, count, scale, plain_scale, offset, keep_threshold, keep_scale,
                2 * WIDTH, WIDTH, SIZE, BLOCK_D, BLOCK_J, KERNEL, DEGREE, PRECISION, DROPOUT,
            )  # fmt: skip
            dk_global += dk_part
            dv_global += dv_part
            dq_part, by_alpha = _through_alpha(dq_part, d_rate, rate_slope, q, vector, root, BLOCK_D, ALPHA)
            d_alpha += by_alpha
            target = dq_global + here * WIDTH + head * SIZE
            dq_part += load_rows(target, row, is_global, WIDTH, SIZE, BLOCK_D).to(tl.float32)
            store_rows(target, row, is_global, dq_part, WIDTH, SIZE, BLOCK_D)
    TILE: tl.constexpr = BLOCK_J * BLOCK_D
    program = share.to(tl.int64) * tl.num_programs(1) + lane
    left = parts + program * 4 * TILE
    place = tl.arange(0, BLOCK_J)[:, None] * BLOCK_D + dimension[None, :]
    tl.store(left + place, dk)
    tl.store(left + TILE + place, dv)
    tl.store(left + 2 * TILE + place, dk_global)
    tl.store(left + 3 * TILE + place, dv_global)
    if ALPHA != "fixed":
        tl.store(alpha_parts + program * BLOCK_D + dimension, d_alpha)


@triton.jit
def _through_alpha(dq_part, d_rate, rate_slope, q, vector, root, BLOCK_D: tl.constexpr, ALPHA: tl.constexpr):
    """The queries' gradient including the path through α, and the gradient of the trained α; that of a head's number
    is the first element."""
    by_alpha = tl.zeros([BLOCK_D], tl.float32)
    if ALPHA == "query":
        d_product = d_rate * rate_slope
        dq_part += d_product[:, None] * vector[None, :]
        by_alpha += tl.sum(d_product[:, None] * q.to(tl.float32), axis=0) * root
    elif ALPHA == "head":
        by_alpha += tl.where(tl.arange(0, BLOCK_D) == 0, tl.sum(d_rate, axis=0), 0.0)
    return dq_part, by_alpha


_PREFIX_PART, _PREFIX_PART_BACKWARD = TritonKernel(_prefix_part), TritonKernel(_prefix_part_backward)

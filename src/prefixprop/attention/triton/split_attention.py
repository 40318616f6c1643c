"""Attention with prefix rows outside the softmax (Eq. 3), where all rows share their projections (ModernBERT).

Softmax and the prefix's part are one operation, so that gradients are added where they are made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart
from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.launch_attention import Shape, Words
from prefixprop.attention.triton.pattern import DevicePattern
from prefixprop.attention.triton.prefix_part import Rows, add_gradients, add_part
from prefixprop.attention.triton.tiles import MASKED
from prefixprop.attention.triton.triton_kernel import function


def split_attention(
    near: Tensor, text: Tensor | None, part: FusedPart | None, pattern: AttentionPattern, arguments: tuple
) -> Tensor:
    """Attention's rows [batch, length, width] from `near` (see tiles), in which tokens stand in their order.

    Without `part`, the prefix's part is left out. Where rows see all of the text, `text` is what was computed for
    its own rows, and those of the prefix are computed here: whatever stands in their place must not learn from the
    gradient that it gets. `arguments` are what the attention's operators take.
    """
    trained = None if part is None or part.trained is None else part.trained.contiguous()
    fixed = None if part is None else part._replace(trained=None)
    run = _split if torch.is_grad_enabled() else _forward
    return run(near, text, trained, pattern.prepared(_without_global_rows), (fixed,), *arguments)[0]


def _without_global_rows(pattern: AttentionPattern) -> Tensor:
    """Of what kind rows are to the part: prefix rows have no projections of their own, so they are like others."""
    return pattern.is_masked.to(torch.int8) * MASKED.value


def _read(near: Tensor, kind: Tensor, arguments: tuple) -> tuple[DevicePattern, Words, Shape, Rows]:
    pattern, words, shape = DevicePattern(*arguments[:5]), Words(*arguments[5:7]), Shape(*arguments[7:])
    return pattern, words, shape, Rows(near, near, pattern._replace(kind=kind), words, shape)


def _forward(
    near: Tensor, text: Tensor | None, trained: Tensor | None, kind: Tensor, fixed: tuple, *arguments: Any
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The rows, and for backward those of the softmax alone, with the logarithms of its totals."""
    pattern, words, shape, for_part = _read(near, kind, arguments)
    others = None if text is None else text.clone(memory_format=torch.contiguous_format)
    rows, log_totals = launch_attention.forward(near, None, pattern, words, shape, others)
    (part,) = fixed
    summed = rows if part is None else add_part(rows, for_part, part._replace(trained=trained))
    return summed, (rows, log_totals)


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, tuple[Tensor, Tensor]]) -> None:
    near, text, trained, kind, ctx.fixed, *arguments = inputs
    ctx.has_text, ctx.numbers = text is not None, arguments[7:]
    ctx.save_for_backward(near, trained, kind, *output[1], *arguments[:7])


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    near, trained, kind, rows, log_totals, *tensors = ctx.saved_tensors
    pattern, words, shape, for_part = _read(near, kind, (*tensors, *ctx.numbers))
    gradient = gradient.contiguous()
    if ctx.has_text:
        for_near = launch_attention.backward_of_global_rows(gradient, rows, log_totals, near, pattern, words, shape)
    else:
        for_near = launch_attention.backward(gradient, rows, log_totals, near, None, pattern, words, shape)[0]
    (part,), for_alpha = ctx.fixed, None
    if part is not None:
        results = (for_near, for_near[:, shape.heads * shape.size :], for_near)
        for_alpha = add_gradients(gradient, for_part, part._replace(trained=trained), results)
    return (for_near, gradient if ctx.has_text else None, for_alpha, *(None,) * (2 + len(tensors) + len(ctx.numbers)))


_split = function(_forward, _keep, _backward)

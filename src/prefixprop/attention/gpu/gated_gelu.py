"""gelu(input) · gate in one pass over memory, forward and backward: ModernBERT's feed-forward between its products.

PyTorch keeps the activation for backward beside what it was made of; here it is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from transformers.activations import GELUActivation

from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.gpu.triton_kernel import TritonKernel, function
from prefixprop.attention.watching import is_watched

HALF_ROOT, DENSITY = tl.constexpr(0.7071067811865476), tl.constexpr(0.3989422804014327)  # 1/√2 and 1/√(2π)


def gated_feed_forward(original: Callable[..., Tensor], module: Any, hidden_states: Tensor) -> Tensor:
    """What `ModernBertMLP.forward` returns; a compiler puts the steps together by itself."""
    if type(module.act) is not GELUActivation or is_watched(module.act) or torch.compiler.is_compiling():
        return original(hidden_states)
    both = module.Wi(hidden_states).contiguous()
    return module.Wo(module.drop((_gated if torch.is_grad_enabled() else _forward)(both)))


def _forward(both: Tensor) -> Tensor:
    """`both` holds the input in the first half of its last dimension, the gate in the second."""
    output = both.new_empty(*both.shape[:-1], both.shape[-1] // 2)
    _launch(both, output, output, backward=False)
    return output


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _backward(ctx: Any, gradient: Tensor) -> Tensor:
    (both,) = ctx.saved_tensors
    for_both = torch.empty_like(both)
    _launch(both, gradient.contiguous(), for_both, backward=True)
    return for_both


def _launch(both: Tensor, single: Tensor, result: Tensor, backward: bool) -> None:
    width = single.shape[-1]
    rows = single.numel() // width
    block, columns = (16, 16) if INTERPRETED else (16, 128)
    _GATED_GELU(
        (-(-width // columns), -(-rows // block)),
        (both, single, result),
        (rows,),
        WIDTH=width,
        BLOCK=block,
        COLUMNS=columns,
        BACKWARD=backward,
    )


@triton.jit(do_not_specialize=["rows"])
def gated_gelu(
    both, gradient, result, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None]
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < rows) & (column < WIDTH)
    pair = row * 2 * WIDTH + column
    entered = tl.load(both + pair, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(both + pair + WIDTH, mask=inside, other=0.0).to(tl.float32)
    share = 0.5 + 0.5 * tl.erf(entered * HALF_ROOT)
    if BACKWARD:
        upstream = tl.load(gradient + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        slope = share + entered * DENSITY * tl.exp(-0.5 * entered * entered)
        tl.store(result + pair, (upstream * gate * slope).to(result.dtype.element_ty), mask=inside)
        tl.store(result + pair + WIDTH, (upstream * entered * share).to(result.dtype.element_ty), mask=inside)
    else:
        tl.store(result + row * WIDTH + column, (entered * share * gate).to(result.dtype.element_ty), mask=inside)


_GATED_GELU = TritonKernel(gated_gelu)
_gated = function(_forward, _keep, _backward)

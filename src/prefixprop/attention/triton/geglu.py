"""The second half of a ModernBERT layer: residual, LayerNorm and gated feed-forward (GEGLU).

The sum and its LayerNorm are one kernel, and so is gelu(input) · gate between the products. Only the inputs are kept
for backward. Layers with frozen weights are blocks instead (`modernbert`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention import modernbert
from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.patch import has_hooks
from prefixprop.attention.triton.residual_norm import sum_and_norm
from prefixprop.attention.triton.shared import Gradients, TritonKernel, run

HALF_ROOT, DENSITY = tl.constexpr(0.7071067811865476), tl.constexpr(0.3989422804014327)  # 1/√2 and 1/√(2π)


def geglu(layer: Any, states: Tensor, attended: Tensor) -> Tensor:
    """As the function of this name in `prefixprop.attention.modernbert`."""
    norm, mlp = layer.mlp_norm, layer.mlp
    parts = (mlp, mlp.act, norm)
    if type(mlp.act) is not GELUActivation or type(norm) is not nn.LayerNorm or any(map(has_hooks, parts)):
        return modernbert.geglu(layer, states, attended)
    states, normed = sum_and_norm(attended, states, norm)
    both = mlp.Wi(normed).contiguous()
    return states + mlp.Wo(mlp.drop(run(_Geglu, both)))


def geglu_forward(both: Tensor) -> Tensor:
    """gelu(input) · gate, where `both` holds the input in the first half of its last dimension."""
    output = both.new_empty(*both.shape[:-1], both.shape[-1] // 2)
    _launch(both, output, output, backward=False)
    return output


def geglu_backward(both: Tensor, gradient: Tensor, result: Tensor) -> None:
    """Write the gradient of `both` into `result`, which may be `both` itself; `gradient` is that of the output."""
    _launch(both, gradient, result, backward=True)


class _KeptGeglu(NamedTuple):
    both: Tensor


class _Geglu:
    @staticmethod
    def forward(both: Tensor, keeps: bool) -> tuple[Tensor, tuple[_KeptGeglu]]:
        return geglu_forward(both), (_KeptGeglu(both),)

    @staticmethod
    def backward(kept: tuple[_KeptGeglu], needs: Sequence[bool], gradient: Tensor) -> Gradients:
        d_both = torch.empty_like(kept[0].both)
        geglu_backward(kept[0].both, gradient, d_both)
        return (d_both,)


def _launch(both: Tensor, single: Tensor, result: Tensor, backward: bool) -> None:
    width = single.shape[-1]
    rows = single.numel() // width
    block, columns = (16, 16) if INTERPRETED else (16, 128)
    _GEGLU(
        (-(-width // columns), -(-rows // block)),
        (both, single, result),
        (rows,),
        WIDTH=width,
        BLOCK=block,
        COLUMNS=columns,
        BACKWARD=backward,
    )


@triton.jit(do_not_specialize=["rows"])
def geglu_kernel(
    both, gradient, result, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Each element is read before it is written, so the result may be `both` itself."""
    row = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None]
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < rows) & (column < WIDTH)
    pair = row * 2 * WIDTH + column
    entered = tl.load(both + pair, mask=inside, other=0.0).to(tl.float32)
    opened = tl.load(both + pair + WIDTH, mask=inside, other=0.0).to(tl.float32)
    share = 0.5 + 0.5 * tl.erf(entered * HALF_ROOT)
    if BACKWARD:
        upstream = tl.load(gradient + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        slope = share + entered * DENSITY * tl.exp(-0.5 * entered * entered)
        tl.store(result + pair, (upstream * opened * slope).to(result.dtype.element_ty), mask=inside)
        tl.store(result + pair + WIDTH, (upstream * entered * share).to(result.dtype.element_ty), mask=inside)
    else:
        tl.store(result + row * WIDTH + column, (entered * share * opened).to(result.dtype.element_ty), mask=inside)


_GEGLU = TritonKernel(geglu_kernel)

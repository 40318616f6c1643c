"""The second half of a ModernBERT layer: the states with what attention gave, and feed-forward of their LayerNorm.

The sum and its LayerNorm are one pass over memory, and so is gelu(input) · gate between the products; PyTorch keeps
the activation for backward beside what it was made of. With frozen weights the whole half is one operation, which
adds the residual within the last product, keeps nothing but the sum, and makes the inner rows again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from transformers.activations import GELUActivation

from prefixprop.attention import rotary
from prefixprop.attention.backends import INTERPRETED
from prefixprop.attention.gpu import residual_norm
from prefixprop.attention.gpu.residual_norm import sum_and_norm
from prefixprop.attention.gpu.triton_kernel import TritonKernel, function
from prefixprop.attention.watching import is_watched

HALF_ROOT, DENSITY = tl.constexpr(0.7071067811865476), tl.constexpr(0.3989422804014327)  # 1/√2 and 1/√(2π)


def gated_feed_forward(layer: Any, states: Tensor, attended: Tensor) -> Tensor:
    """What the function of this name in `rotary` returns."""
    norm, mlp = layer.mlp_norm, layer.mlp
    parts = (mlp, mlp.act, norm)
    if (
        type(mlp.act) is not GELUActivation
        or type(norm) is not nn.LayerNorm
        or any(map(is_watched, parts))
        or torch.compiler.is_compiling()  # a compiler puts the steps together by itself
    ):
        return rotary.gated_feed_forward(layer, states, attended)
    weights = FrozenWeights.of(layer, states)
    if weights is not None:
        keeps = torch.is_grad_enabled() and (states.requires_grad or attended.requires_grad)
        run = _half if keeps else _half_forward
        return run(states.contiguous(), attended.contiguous(), *weights, norm.eps, keeps)[0]
    states, normed = sum_and_norm(attended, states, norm)
    both = mlp.Wi(normed).contiguous()
    return states + mlp.Wo(mlp.drop((_gated if torch.is_grad_enabled() else gate)(both)))


class FrozenWeights(NamedTuple):
    norm: Tensor
    inner: Tensor
    outer: Tensor

    @classmethod
    def of(cls, layer: Any, states: Tensor) -> FrozenWeights | None:
        """The weights, or None where one is not frozen or has a bias, or somebody waits for a part to be called."""
        norm, mlp = layer.mlp_norm, layer.mlp
        parts = (norm, mlp.Wi, mlp.Wo)
        if tuple(map(type, parts[1:])) != (nn.Linear, nn.Linear) or (mlp.drop.training and mlp.drop.p):
            return None
        if any(map(is_watched, (*parts[1:], mlp.drop))) or torch.is_autocast_enabled(states.device.type):
            return None
        if any(part.weight.requires_grad or part.bias is not None for part in parts):
            return None
        if any(part.weight.dtype != states.dtype for part in parts):
            return None
        return cls(*(part.weight for part in parts))


def _half_forward(
    states: Tensor, attended: Tensor, scale: Tensor, inner: Tensor, outer: Tensor, epsilon: float, keeps: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The layer's output, and what backward needs."""
    normed, total, moments = residual_norm.normalise(attended, states, scale, None, scale, scale, epsilon, 0.0, True)
    active, flat = gate(normed.flatten(0, -2) @ inner.t()), total.flatten(0, -2)
    if not keeps:
        flat.addmm_(active, outer.t())
        return total, (total, moments)
    output = torch.empty_like(states)  # no view of another: prefix rows may be added in place
    torch.addmm(flat, active, outer.t(), out=output.view_as(flat))
    return output, (total, moments)


def _keep_half(ctx: Any, inputs: tuple, output: tuple[Tensor, tuple[Tensor, Tensor]]) -> None:
    _, attended, *weights, ctx.epsilon, _ = inputs
    ctx.attended_type = attended.dtype
    ctx.save_for_backward(*weights, *output[1])


def _half_backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    scale, inner, outer, total, moments = ctx.saved_tensors
    flat, gradient = total.flatten(0, -2), gradient.contiguous()
    upstream = gradient.view_as(flat) @ outer
    both = F.layer_norm(flat, scale.shape, scale, None, ctx.epsilon) @ inner.t()
    _launch(both, upstream, both, backward=True)  # which becomes its own gradient: nobody else has it
    for_normed = (both @ inner).view_as(total)
    found = residual_norm.gradients(for_normed, total, moments, scale, scale, scale, False, 0.0, gradient)[0]
    return found, found.to(ctx.attended_type), *(None,) * 5


def gate(both: Tensor) -> Tensor:
    """gelu(input) · gate, where `both` holds the input in the first half of its last dimension."""
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
    """Each element is read before it is written: the result may stand where `both` does."""
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


_GATED_GELU = TritonKernel(gated_gelu)
_gated = function(gate, _keep, _backward)
_half = function(_half_forward, _keep_half, _half_backward)

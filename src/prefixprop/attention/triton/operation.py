"""Steps of a layer as operations of PyTorch."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


class _Operation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: Any, *tensors: Tensor | None) -> Any:
        output, kept = step.forward(*tensors, keeps=True)
        ctx.step, ctx.kinds = step, [*map(type, kept)]
        ctx.save_for_backward(*chain.from_iterable(kept))
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        if gradients.count(None) == len(gradients):
            return (None,) * len(ctx.needs_input_grad)
        saved = iter(ctx.saved_tensors)
        kept = [kind(*islice(saved, len(kind._fields))) for kind in ctx.kinds]
        whole = [None if gradient is None else gradient.contiguous() for gradient in gradients]
        return None, *ctx.step.backward(kept, ctx.needs_input_grad[1:], *whole)


def run(step: Any, *tensors: Tensor | None) -> Any:
    """The output of a step; through autograd only if something learns, which saves the host time.

    A step has `forward(*tensors, keeps)`, which returns its output, and named tuples of tensors for backward if it
    `keeps` any; and `backward(kept, needs, *gradients)`, which returns the gradients of `tensors`. Whatever needs no
    gradient is a part of the step itself.
    """
    learns = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return _Operation.apply(step, *tensors) if learns else step.forward(*tensors, keeps=False)[0]

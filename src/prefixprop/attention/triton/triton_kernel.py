"""How Triton kernels are launched, and how PyTorch differentiates steps that are made of them."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import torch
import triton
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


class TritonKernel:
    """A Triton function with a faster launch: Triton's own takes longer than many kernels run.

    Triton inspects every argument at every launch, because the value of a number may matter. Here it never does (see
    `do_not_specialize`), so types, alignment and constants identify the compiled kernel, at any length.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self._compiled: dict[tuple, tuple[Any, tuple]] = {}

    def __call__(
        self, grid: tuple[int, ...], tensors: tuple[Tensor, ...], numbers: tuple[int | float, ...], **constants: Any
    ) -> None:
        """Constants are the constexpr parameters and Triton's launch options; all parameters come in this order."""
        if not isinstance(self.function, triton.runtime.JITFunction):  # interpreted
            self.function[grid](*tensors, *numbers, **constants)
            return
        key = (
            tensors[0].device,
            tuple(constants.values()),
            *[(tensor.dtype, tensor.data_ptr() % 16) for tensor in tensors],
        )
        if (found := self._compiled.get(key)) is None:
            compiled = self.function[grid](*tensors, *numbers, **constants)
            in_order = tuple(constants[name] for name in self.function.arg_names if name in constants)
            self._compiled[key] = compiled, in_order
            return
        compiled, in_order = found
        compiled[(*grid, 1, 1)[:3]](*tensors, *numbers, *in_order)


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
        if all(gradient is None for gradient in gradients):  # not `count`, which compares tensors
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

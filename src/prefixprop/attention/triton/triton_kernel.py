"""How Triton kernels are launched."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor


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

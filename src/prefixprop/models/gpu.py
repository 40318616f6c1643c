"""Short documents on a GPU: a pass is recorded once for each shape and then played again, as a CUDA graph.

A pass over a few short documents takes the GPU less time than Python takes to start its kernels; to play a recording
takes neither. Batches are padded a little further, so that shapes come again. What is computed stays the same: the
same kernels, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only

from prefixprop.attention.backends import why_not
from prefixprop.attention.patch import ATTRIBUTE

MOST_TOKENS = 16_384  # of a batch: with more, the GPU is the slower one
MOST_RECORDINGS = 64  # further shapes are computed as ever
STEP, STEPS = 64, 8  # lengths that batches are padded to: multiples of the first, so many between powers of two


def hold_frozen_in_bfloat16(model: nn.Module) -> None:
    """Convert every weight that is not trained, once; autocast, which the model is to run under, would at each step.

    Trained weights keep their type. A Longformer whose layers are held so is computed a layer at a time (see
    `prefixprop.attention.triton.frozen_layer`), in half the memory.
    """
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(torch.bfloat16)
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            # peft would take LoRA's input to float32, and autocast back again.
            module.cast_input_dtype_enabled = False


def without_cudnn() -> AbstractContextManager[None]:
    """Let PyTorch's attention leave out cuDNN, which makes a plan for every length that it meets for the first time.

    For documents of thousands of lengths these plans take several times as long as the training itself.
    """
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def can_use_cuda_graphs(model: nn.Module) -> bool:
    """Whether all of a pass happens on the GPU, as it does with the attention of the backend `triton`.

    Hugging Face's code looks at the numbers of a mask while it runs, which no recording can do.
    """
    device = next(model.parameters()).device
    fast = [getattr(module, ATTRIBUTE) for module in model.modules() if getattr(module, ATTRIBUTE, None) is not None]
    on_gpu = device.type == "cuda" and why_not("triton", device) is None
    return on_gpu and bool(fast) and all(each.is_on() and each.backend != "sdpa" for each in fast)


def padded_length(longest: int, most: int) -> int:
    """What a batch whose longest document has so many tokens is padded to, `most` at the most.

    >>> [padded_length(length, most=4000) for length in (10, 64, 300, 1000, 1025, 2600, 3900)]
    [64, 64, 320, 1024, 1152, 2816, 4000]
    """
    step = max(STEP, (1 << (longest - 1).bit_length()) // (2 * STEPS))
    return max(longest, min(-(-longest // step) * step, most))


class _Recording(NamedTuple):
    graph: Any
    inputs: dict[str, Tensor]
    outputs: Any


class CudaGraph:
    """Stands for `run`, a function of tensors on a GPU, which must not wait for the device.

    What it returns is its own until the next call. The first call of a shape runs as ever, and compiles what is to be
    compiled; the second one is recorded.
    """

    def __init__(self, run: Callable[[dict[str, Tensor]], Any]) -> None:
        self.run = run
        self._seen: set[Hashable] = set()
        self._recordings: dict[Hashable, _Recording] = {}
        self._memory: Any = None  # which all recordings share: no two are played at once
        self._most = MOST_RECORDINGS

    def __call__(self, inputs: Mapping[str, Tensor], variant: Hashable = None) -> Any:
        """`variant` tells apart what the shapes do not."""
        if inputs["input_ids"].numel() > MOST_TOKENS:
            return self.run(dict(inputs))
        key = (variant, *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()))
        if key not in self._seen:
            self._seen.add(key)
            return self.run(dict(inputs))
        if key not in self._recordings and len(self._recordings) < self._most:
            try:
                self._recordings[key] = self._record(inputs)
            except torch.OutOfMemoryError:  # what is recorded has memory of its own
                self._most = 0
                self._recordings.clear()
                torch.cuda.empty_cache()
        if key not in self._recordings:
            return self.run(dict(inputs))
        recording = self._recordings[key]
        for name, tensor in recording.inputs.items():
            tensor.copy_(inputs[name], non_blocking=True)
        recording.graph.replay()
        return tree_map_only(Tensor, torch.clone, recording.outputs)

    def _record(self, inputs: Mapping[str, Tensor]) -> _Recording:
        held = {name: tensor.clone() for name, tensor in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        # Other threads go on, such as the one that brings the next batch to the device.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            outputs = self.run(dict(held))
        self._memory = graph.pool()
        return _Recording(graph, held, outputs)


class StaticGradients:
    """Gradients that stay where they are, for a recorded step to find them; between steps they are cleared."""

    def __init__(self) -> None:
        self._held: list[tuple[nn.Parameter, Tensor]] = []

    def attach(self) -> None:
        """Give parameters their gradients back, as zeros where the Trainer has taken them away."""
        cleared = [(parameter, gradient) for parameter, gradient in self._held if parameter.grad is None]
        if cleared:
            torch._foreach_zero_([gradient for _, gradient in cleared])
        for parameter, gradient in cleared:
            parameter.grad = gradient

    def learn(self, model: nn.Module) -> None:
        """After a first step: those that it gave a gradient are those that have one."""
        if not self._held:
            self._held = [(each, each.grad) for each in model.parameters() if each.grad is not None]

"""Running models on a GPU: the size of batches, frozen weights in bfloat16, attention without cuDNN, and CUDA graphs.

A GPU can compute faster than Python launches its kernels: with short documents on any machine, with long ones on a
slow host. A CUDA graph records a pass once per shape and then replays it without Python. Batches are padded a little
further, and filled up a little, so that shapes repeat. The kernels and random numbers stay the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only

from prefixprop.attention.backends import is_modern_gpu, why_not
from prefixprop.attention.patch import ATTRIBUTE

MOST_RECORDINGS = 64  # further shapes are not recorded
STEP, STEPS = 64, 8  # batches are padded to multiples of STEP, and to STEPS lengths between powers of two


def default_batch_tokens(device: torch.device) -> int:
    """Tokens in a batch without gradients: many keep a GPU busy, few fit into the caches of a CPU."""
    return 65_536 if device.type == "cuda" else 4096


def use_bf16(precision: str) -> bool:
    """Whether a run with this setting computes in bf16."""
    # Without instructions for it, it is slower than fp32, on a CPU some thirty times.
    return precision == "bf16" or (precision == "auto" and is_modern_gpu())


def hold_frozen_in_bfloat16(model: nn.Module) -> None:
    """Convert every frozen weight once; the model is meant to run under autocast, which would do so at each step.

    Trained weights keep their type. Frozen layers in bfloat16 run as fused layers (see
    `prefixprop.attention.triton.block`), in half the memory.
    """
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(torch.bfloat16)
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            # peft would convert LoRA's input to float32, and autocast would convert it back.
            module.cast_input_dtype_enabled = False


def without_cudnn() -> AbstractContextManager[None]:
    """Keep PyTorch's attention from using cuDNN, which makes a plan for every new length.

    For documents of thousands of lengths, making the plans takes several times as long as the training itself.
    """
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def can_use_cuda_graphs(model: nn.Module) -> bool:
    """Whether a pass never waits for the GPU, as with the `triton` backend.

    Hugging Face's attention reads values of a mask back from the GPU, which cannot be recorded.
    """
    device = next(model.parameters()).device
    if device.type != "cuda" or why_not("triton", device) is not None:
        return False
    # This is asked for every batch, and `getattr` on a module is slow if the attribute is missing.
    fast = [vars(module)[ATTRIBUTE] for module in model.modules() if ATTRIBUTE in vars(module)]
    return bool(fast) and all(each.is_on() and each.backend != "sdpa" for each in fast)


def padded_length(longest: int, most: int) -> int:
    """The length to which a batch is padded whose longest document has `longest` tokens; `most` is the limit.

    >>> [padded_length(length, most=4000) for length in (10, 64, 300, 1000, 1025, 2600, 3900)]
    [64, 64, 320, 1024, 1152, 2816, 4000]
    """
    step = max(STEP, (1 << (longest - 1).bit_length()) // (2 * STEPS))
    return max(longest, min(-(-longest // step) * step, most))


def padded_count(count: int, most: int) -> int:
    """To how many documents a batch is filled up, so that numbers come again; `most` fill a batch.

    >>> [padded_count(count, most=40) for count in (1, 3, 5, 7, 9, 13, 17, 33, 40, 50)]
    [1, 3, 6, 8, 12, 16, 24, 40, 40, 50]
    """
    power = 1 << (count - 1).bit_length()
    return max(count, min(3 * power // 4 if count <= 3 * power // 4 else power, most))


class _Recording(NamedTuple):
    graph: Any
    inputs: dict[str, Tensor]
    outputs: Any


def peak_of(run: Callable[[], Any]) -> tuple[Any, int]:
    """What `run` returns, and how many bytes of the GPU it took at its peak."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    return run(), torch.cuda.max_memory_allocated() - before


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


class CudaGraph:
    """Replays `run`, a function of tensors on a GPU that must not wait for the device.

    The first call of a shape runs as usual, because it may compile kernels, and so does the first call of a thread,
    which makes its cuBLAS handle: neither can be recorded. The next call is recorded; later ones, of any thread, are
    replayed. Recordings have memory of their own, so a shape is recorded only if as much is free as the first call
    took.
    """

    def __init__(self, run: Callable[[dict[str, Tensor]], Any]) -> None:
        self.run = run
        self._needed: dict[Hashable, int] = {}  # bytes that the first call of a shape took
        self._threads: set[int] = set()  # that have made a call
        self._recordings: dict[Hashable, _Recording] = {}
        self._memory: Any = None  # shared by all recordings, because no two are replayed at once
        self._most = MOST_RECORDINGS

    def __call__(self, inputs: Mapping[str, Tensor], variant: Hashable = None) -> Any:
        """`variant` distinguishes calls of the same shapes that compute something else."""
        key = (variant, *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()))
        thread = threading.get_ident()
        if key not in self._recordings and (key not in self._needed or thread not in self._threads):
            outputs, self._needed[key] = peak_of(partial(self.run, dict(inputs)))
            self._threads.add(thread)
            return outputs
        if key not in self._recordings and len(self._recordings) < self._most and self._needed[key] <= free_bytes():
            try:
                self._recordings[key] = self._record(inputs)
            except torch.OutOfMemoryError:  # recordings take memory of their own
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
        # Other threads continue, such as the one that copies the next batch to the device.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            outputs = self.run(dict(held))
        self._memory = graph.pool()
        torch.cuda.empty_cache()  # what the first call took is not needed beside it
        return _Recording(graph, held, outputs)


class StaticGradients:
    """Gradients that stay at the same address for a recorded step; between steps they are set to zero."""

    def __init__(self) -> None:
        self._held: list[tuple[nn.Parameter, Tensor]] = []

    def attach(self) -> None:
        """Give parameters their gradients back, as zeros, after the Trainer has removed them."""
        cleared = [(parameter, gradient) for parameter, gradient in self._held if parameter.grad is None]
        if cleared:
            torch._foreach_zero_([gradient for _, gradient in cleared])
        for parameter, gradient in cleared:
            parameter.grad = gradient

    def learn(self, model: nn.Module) -> None:
        """After a first step: remember the gradients of all parameters that got one."""
        if not self._held:
            self._held = [(each, each.grad) for each in model.parameters() if each.grad is not None]

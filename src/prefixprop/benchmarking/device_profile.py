"""Where a GPU's time goes: the kernels of a call, by what they are for."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from prefixprop.benchmarking.timing import WARM_UP, Run

# The first that is found in a kernel's name says what it is for.
_KINDS = {
    "attention, all rows": r"flash|sdpa",
    "products with weights": r"gemm|nvjet|cutlass|cublas|splitkreduce",
    "attention, local rows": r"local_rows|band_keys",
    "attention, global rows and keys": r"global_rows|listed_keys|far_keys|project_rows|list_tokens",
    "residual and LayerNorm": r"normalise|differentiate|layer_norm",
    "GELU": r"gelu",
    "rotary positions": r"rotate_rows|move_rows",
    "embeddings": r"embedding|indexselect|index_select|gather",
}
OTHER = "copies and other small kernels"
KINDS = (*_KINDS, OTHER)
CALLS = 10


@dataclass(frozen=True)
class DeviceProfile:
    """Milliseconds of one call: of the device by kind of kernel, and of the host until it has started them all."""

    by_kind: Mapping[str, float]
    kernels: int
    host: float

    @property
    def device(self) -> float:
        return sum(self.by_kind.values())


def profile_on_device(run: Run) -> DeviceProfile:
    """Profile a call on the GPU, after a warm-up, as the mean of several."""
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    host = time.perf_counter() - started
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(CALLS):
            run()
        torch.cuda.synchronize()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    by_kind = dict.fromkeys(KINDS, 0.0)
    for kernel in kernels:
        by_kind[kind_of(kernel.name)] += kernel.self_device_time_total / 1000 / CALLS
    return DeviceProfile(by_kind, round(len(kernels) / CALLS), 1000 * host)


def kind_of(kernel: str) -> str:
    """What a kernel is for, by its name.

    >>> kind_of("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNT")
    'products with weights'
    """
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), OTHER)

"""How the benchmarks measure: after a warm-up, the median over repeats, waiting for the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch


def measure(run: Callable[[], object], device: str, repeats: int) -> tuple[float, float]:
    """Median seconds, and peak memory in GiB where the device counts it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    return median(times[1:]), peak

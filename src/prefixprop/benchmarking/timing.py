"""How run times are measured: after a warm-up, in turns, waiting for the device."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

WARM_UP = 2  # calls that are not counted: kernels are compiled, memory is taken from the device
GIB = 2**30

Run = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of each counted call, and the peak of memory allocated meanwhile, weights included.

    `peak_gib` is None where the device does not count (the CPU). No seconds: the device had too little memory.
    """

    seconds: tuple[float, ...]
    peak_gib: float | None

    @property
    def out_of_memory(self) -> bool:
        return not self.seconds

    @property
    def median(self) -> float:
        return median(self.seconds)


def measure(run: Run, device: str, repeats: int) -> Timing:
    """Time one thing on its own."""
    return measure_in_turns({"run": run}, device, repeats)["run"]


def measure_in_turns(
    runs: Mapping[str, Run], device: str, repeats: int, warm_up: int = WARM_UP, calls: int = 1
) -> dict[str, Timing]:
    """Time several things in turns (A B C, B C A, ...), so that a drift of the machine affects them all alike.

    A measurement is the mean of `calls` calls that do not wait for each other's results.

    What runs out of the device's memory is left out from then on; the others continue.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    peaks: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(warm_up + repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if name not in seconds:
                continue
            try:
                took, peak = _timed(runs[name], device, calls)
            except torch.OutOfMemoryError:
                del seconds[name]
                gc.collect()  # the error's traceback holds tensors in cycles
                torch.cuda.empty_cache()
                continue
            if turn >= warm_up:
                seconds[name].append(took)
                peaks[name].append(peak)
    counts_memory = device == "cuda"
    return {
        name: Timing(tuple(seconds[name]), max(peaks[name]) if counts_memory else None)
        if name in seconds
        else Timing((), None)
        for name in names
    }


def _timed(run: Run, device: str, calls: int) -> tuple[float, float]:
    if device != "cuda":
        started = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - started) / calls, 0.0
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / calls, torch.cuda.max_memory_allocated() / GIB

"""Results as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from prefixprop.benchmarking.attention import AttentionResult
from prefixprop.benchmarking.encoders import device_name, find_device
from prefixprop.benchmarking.runtime import RuntimeResult
from prefixprop.benchmarking.timing import Timing


def record_of_run(benchmark: str, model: str, size: str, backend: str, repeats: int) -> dict[str, Any]:
    """What was run, and on what."""
    device = find_device()
    return {
        "benchmark": benchmark,
        "device": device_name(device),
        "dtype": "bfloat16" if device == "cuda" else "float32",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model": model,
        "size": size,
        "backend": backend,
        "repeats": repeats,
    }


def record_of_attention(results: Sequence[AttentionResult]) -> list[dict[str, Any]]:
    return [
        {
            "batch": result.case.batch,
            "length": result.case.length,
            "global": result.case.global_tokens,
            "dropout": result.case.dropout,
            "method": result.case.method,
            "recorded": result.case.recorded,
            "pass": result.name,
            "hugging_face": None if result.theirs is None else _record_of_timing(result.theirs),
            "prefixprop": _record_of_timing(result.ours),
            "ratio": result.ratio,
        }
        for result in results
    ]


def record_of_runtime(results: Sequence[RuntimeResult]) -> list[dict[str, Any]]:
    return [
        {
            "method": result.method,
            **_record_of_timing(result.timing),
            "relative": result.relative,
            "low": result.low,
            "high": result.high,
        }
        for result in results
    ]


def _record_of_timing(timing: Timing) -> dict[str, Any]:
    return {
        "out_of_memory": timing.out_of_memory,
        "median_s": None if timing.out_of_memory else timing.median,
        "seconds": list(timing.seconds),
        "peak_gib": timing.peak_gib,
    }

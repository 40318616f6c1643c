"""How fast things are: the attention beside Hugging Face's, and the prefix methods beside no prefix."""

from prefixprop.benchmarking.attention import AttentionResult, bench_attention
from prefixprop.benchmarking.runtime import RuntimeResult, bench_runtime, runtime_runs
from prefixprop.benchmarking.timing import Timing, measure, measure_in_turns

__all__ = [
    "AttentionResult",
    "RuntimeResult",
    "Timing",
    "bench_attention",
    "bench_runtime",
    "measure",
    "measure_in_turns",
    "runtime_runs",
]

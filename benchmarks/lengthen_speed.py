"""How fast `prefixprop lengthen` trains: tokens a second beside Hugging Face's Longformer, and where the time goes.

    python benchmarks/lengthen_speed.py

A step of masked language modelling, forward, backward and optimizer, on random weights of the embedded model's and
of longformer-base's size: with the fast attention and with Hugging Face's, in turns, in one run. Needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LongformerForMaskedLM
from transformers.utils import logging

from prefixprop.attention import install
from prefixprop.benchmarking.device_profile import KINDS, profile_on_device
from prefixprop.benchmarking.encoders import FIRST_WORD, SIZES, VOCABULARY, device_name
from prefixprop.benchmarking.timing import Timing, measure_in_turns
from prefixprop.lengthen.objective import Objective
from prefixprop.lengthen.text import MASKED
from prefixprop.lengthen.trainer import MasterWeights

LENGTH = 4096
OURS, THEIRS = "prefixprop", "Hugging Face"


def training_step(size: str, rows: int, fast: bool) -> Callable[[], None]:
    """A step of `rows` documents of full length, in bfloat16."""
    torch.manual_seed(0)
    model: Any = LongformerForMaskedLM(SIZES[size].config(LENGTH, dropout=0.0)).cuda()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("_global." not in name)  # no token is global
    if fast:
        install(model)
    weights = MasterWeights(model, torch.bfloat16, weight_decay=0.01)
    objective = Objective(model)
    tokens = torch.randint(FIRST_WORD, VOCABULARY, (rows, LENGTH), device="cuda")
    masked = round(MASKED * rows * LENGTH)
    positions = torch.randperm(rows * LENGTH, device="cuda")[:masked].sort().values
    targets = tokens.flatten()[positions]

    def step() -> None:
        loss = objective(tokens, positions, targets).tokens
        loss.backward()
        weights.collect_gradients()
        weights.step(learning_rate=1e-6)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs=2, default=(32, 8), help="rows in a step, of mini and of base")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    logging.set_verbosity_error()
    console = Console(width=120)
    table = Table(title=f"Masked language modelling, {LENGTH} tokens, bf16 ({device_name('cuda')})")
    for column in ("size", "rows", "attention", "step, ms", "tokens/s", "GiB", "times as fast"):
        table.add_column(column, justify="left" if column in ("size", "attention") else "right")
    for size, rows in zip(SIZES, options.rows, strict=True):
        steps = {OURS: training_step(size, rows, fast=True), THEIRS: training_step(size, rows, fast=False)}
        timings = measure_in_turns(steps, "cuda", options.repeats)
        for name, timing in timings.items():
            table.add_row(size, str(rows), name, *_cells(timing, timings[THEIRS], rows))
        if size == "mini":
            steps.pop(THEIRS)
        profiled = profile_on_device(steps[OURS])
        shares = "; ".join(f"{kind} {profiled.by_kind[kind]:.1f}" for kind in KINDS)
        console.print(f"{size}, ms on the device, {profiled.kernels} kernels: {shares}", highlight=False)
        del steps
        torch.cuda.empty_cache()
    console.print(table)


def _cells(timing: Timing, theirs: Timing, rows: int) -> list[str]:
    if timing.out_of_memory:
        return ["out of memory", "", "", ""]
    ratio = "" if theirs.out_of_memory else f"{theirs.median / timing.median:.1f}"
    return [
        f"{1000 * timing.median:.1f}",
        f"{rows * LENGTH / timing.median:,.0f}",
        f"{timing.peak_gib:.1f}",
        ratio,
    ]


if __name__ == "__main__":
    main()

"""How fast `prefixprop lengthen` trains, beside Hugging Face's Longformer.

    python benchmarks/lengthen.py --size base --batch 8

A step of masked language modelling, forward, backward and optimizer, on random weights: with our attention and with
Hugging Face's, in turns.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import LongformerForMaskedLM

from prefixprop.attention import install
from prefixprop.lengthen.encoder import Objective
from prefixprop.lengthen.text import MASKED
from prefixprop.lengthen.trainer import MasterWeights

import measuring
from measuring import DEVICE, DTYPE, OURS, THEIRS


def main() -> None:
    options = measuring.make_parser(__doc__, repeats=5, batch=32, models=("longformer",)).parse_args()
    steps = {OURS: training_step(options, fast=True), THEIRS: training_step(options, fast=False)}
    timings = measuring.measure_in_turns(steps, options.repeats)
    ratio = timings[THEIRS].over(timings[OURS])
    rows = [
        {
            "attention": name,
            "step": str(timing),
            "tokens/s": f"{options.batch * options.length / timing.median:,.0f}" if timing.median else "",
            "peak GiB": f"{timing.peak_gib:.1f}" if timing.peak_gib else "",
            "times as fast": f"{ratio:.1f}" if ratio and name == OURS else "",
        }
        for name, timing in timings.items()
    ]
    measuring.publish(options, "lengthen", rows, results=timings)


def training_step(options: Any, fast: bool) -> measuring.Run:
    """A step on texts of full length."""
    torch.manual_seed(0)
    config = measuring.encoder_config(options.model, options.size, options.length)
    model: Any = LongformerForMaskedLM(config).to(DEVICE)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("_global." not in name)  # no token is global
    if fast:
        install(model, backend=options.backend)
    weights = MasterWeights(model, DTYPE, weight_decay=0.01)
    objective = Objective(model)
    tokens = measuring.random_inputs(options.batch, options.length)["input_ids"]
    masked = round(MASKED * tokens.numel())
    positions = torch.randperm(tokens.numel(), device=DEVICE)[:masked].sort().values
    targets = tokens.flatten()[positions]

    def step() -> None:
        objective(tokens, positions, targets).tokens.backward()
        weights.collect_gradients()
        weights.step(1e-6)  # the learning rate

    return step


if __name__ == "__main__":
    main()

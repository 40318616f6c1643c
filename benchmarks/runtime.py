"""The paper's run-time table: no PEFT, prefix-tuning and prefix-propagation on the same random sequences.

    python benchmarks/runtime.py --size base
    python benchmarks/runtime.py --size base --train --repeats 3

Every method has the same frozen weights and the same batch. Methods take turns, so that a drift of the machine
affects them all. The interval is a bootstrap over the rounds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from peft import get_peft_model
from transformers import AutoModelForSequenceClassification

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig
from prefixprop.attention import install

import measuring
from measuring import DEVICE, DTYPE, Run, Timing

NO_PEFT, TUNING, PROPAGATION = "no PEFT", "prefix-tuning", "prefix-propagation"
PAPER = {TUNING: "+2.1 %", PROPAGATION: "+0.2 %"}  # inference on a GTX 1080 Ti (appendix, "Runtime Performance")
RESAMPLES = 2000


def main() -> None:
    parser = measuring.make_parser(__doc__, repeats=50, batch=8)
    parser.add_argument("--prefix", type=int, default=8, help="virtual tokens")
    batches = 10 if measuring.ON_GPU else 1
    parser.add_argument("--batches", type=int, default=batches, help="in a measurement, without a wait in between")
    parser.add_argument("--train", action="store_true", help="time training steps instead of inference")
    options = parser.parse_args()
    timings = measuring.measure_in_turns(make_runs(options), options.repeats, options.batches)
    results, rows = [], []
    for method, timing in timings.items():
        relative = relative_time(timing, timings[NO_PEFT])
        results.append({"method": method, **timing.record, **relative})
        change, low, high = ("" if each is None else f"{100 * (each - 1):+.1f} %" for each in relative.values())
        row = {"method": method, "time": str(timing), "over no PEFT": change, "95 % interval": f"{low} to {high}"}
        rows.append(row | ({} if options.train else {"paper": PAPER.get(method, "")}))
    measuring.publish(options, "runtime", rows, results=results)


def make_runs(options: Any) -> dict[str, Run]:
    """Inference, or with `--train` forward and backward, of each method."""
    torch.manual_seed(0)
    config = measuring.encoder_config(options.model, options.size, options.length, num_labels=2)
    model = AutoModelForSequenceClassification.from_config(config).requires_grad_(False).to(DEVICE, DTYPE)
    given = {"task_type": "SEQ_CLS", "num_virtual_tokens": options.prefix}
    models = {
        NO_PEFT: measuring.twin_of(model),
        TUNING: get_peft_model(measuring.twin_of(model), PrefixTuningConfig(**given)),
        PROPAGATION: get_peft_model(measuring.twin_of(model), PrefixPropagationConfig(**given)),
    }
    for each in models.values():
        install(each.train(options.train), backend=options.backend)
    inputs, work = measuring.random_inputs(options.batch, options.length), measuring.forward
    if options.train:
        inputs["labels"], work = torch.zeros(options.batch, dtype=torch.long, device=DEVICE), step
        models[NO_PEFT].enable_input_require_grads()  # so that all methods go back through all layers
    return {method: partial(work, each, inputs) for method, each in models.items()}


def step(model: Any, inputs: measuring.Inputs) -> None:
    model(**inputs).loss.backward()
    model.zero_grad()


def relative_time(timing: Timing, base: Timing) -> dict[str, float | None]:
    """Ratio of the medians, and the 2.5 % and 97.5 % quantiles of it over resampled rounds.

    A round timed both one after the other, so rounds are drawn as pairs.
    """
    ratio = timing.over(base)
    if ratio is None:
        return {"relative": None, "low": None, "high": None}
    mine, theirs = np.array(timing.seconds), np.array(base.seconds)
    rounds = np.random.default_rng(0).integers(len(mine), size=(RESAMPLES, len(mine)))
    ratios = np.median(mine[rounds], axis=1) / np.median(theirs[rounds], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {"relative": ratio, "low": float(low), "high": float(high)}


if __name__ == "__main__":
    main()

"""The paper's run-time table: no PEFT, prefix-tuning and prefix-propagation on the same random sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import get_peft_model
from transformers import AutoModelForSequenceClassification

from prefixprop.attention import install
from prefixprop.benchmarking.encoders import EncoderSize, find_device, frozen_on, random_tokens, twin_of
from prefixprop.benchmarking.timing import Run, Timing, measure_in_turns
from prefixprop.config import PrefixPropagationConfig, PrefixTuningConfig

NO_PEFT, TUNING, PROPAGATION, HUGGING_FACE = (
    "no PEFT", "prefix-tuning", "prefix-propagation", "no PEFT, Hugging Face",
)  # fmt: skip
# Inference on a GTX 1080 Ti (appendix, "Runtime Performance").
PAPER = {NO_PEFT: 1.0, TUNING: 1.021, PROPAGATION: 1.002}
RESAMPLES = 2000


@dataclass(frozen=True)
class RuntimeResult:
    """A method's run time, and its ratio to no PEFT with a 95 % interval; None: one of the two ran out of memory."""

    method: str
    timing: Timing
    relative: float | None
    low: float | None
    high: float | None


def bench_runtime(runs: Mapping[str, Run], repeats: int, batches: int = 1) -> list[RuntimeResult]:
    """Time what `runtime_runs` made, on several batches one after the other, as in reading a corpus."""
    timings = measure_in_turns(runs, find_device(), repeats, calls=batches)
    return [
        RuntimeResult(method, timing, *relative_time(timing, timings[NO_PEFT])) for method, timing in timings.items()
    ]


def runtime_runs(
    size: EncoderSize,
    batch: int,
    length: int,
    prefix: int,
    train: bool = False,
    backend: str = "auto",
    with_hugging_face: bool = False,
) -> dict[str, Run]:
    """Inference, or with `train` forward and backward; every method has the same weights and the same batch.

    The backbone is frozen throughout. Without PEFT a training step goes back to the embeddings, so that all do the
    work of one backward pass through all layers.
    """
    device = find_device()
    torch.manual_seed(0)
    config = size.config(length, dropout=0.0, num_labels=2)
    model = frozen_on(AutoModelForSequenceClassification.from_config(config), device)
    configs = {
        TUNING: PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=prefix),
        PROPAGATION: PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=prefix),
    }
    models: dict[str, Any] = {NO_PEFT: twin_of(model)}
    models |= {method: get_peft_model(twin_of(model), config) for method, config in configs.items()}
    for fast in models.values():
        install(fast, backend=backend)
    if with_hugging_face:
        models[HUGGING_FACE] = model
    inputs = random_tokens(batch, length, device)
    return {method: (_step if train else _inference)(which, inputs) for method, which in models.items()}


def relative_time(timing: Timing, base: Timing) -> tuple[float, float, float] | tuple[None, None, None]:
    """Ratio of the medians, and the 2.5 % and 97.5 % quantiles of it over resampled rounds.

    A round timed both one after the other, so rounds are drawn as pairs.
    """
    if timing.out_of_memory or base.out_of_memory:
        return None, None, None
    mine, theirs = np.array(timing.seconds), np.array(base.seconds)
    rounds = np.random.default_rng(0).integers(len(mine), size=(RESAMPLES, len(mine)))
    ratios = np.median(mine[rounds], axis=1) / np.median(theirs[rounds], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return timing.median / base.median, float(low), float(high)


def _inference(model: Any, inputs: dict[str, torch.Tensor]) -> Run:
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(**inputs)

    return run


def _step(model: Any, inputs: dict[str, torch.Tensor]) -> Run:
    model.train()
    labels = torch.zeros(len(inputs["input_ids"]), dtype=torch.long, device=inputs["input_ids"].device)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        model.enable_input_require_grads()

    def run() -> None:
        model(**inputs, labels=labels).loss.backward()
        model.zero_grad()

    return run

"""The fast attention beside Hugging Face's: forward and training step, time and peak memory.

The backbone is frozen and a step goes back to the embeddings, as a prefix method's does; or a method trains what it
trains, or the whole model learns.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel

from prefixprop.attention import install
from prefixprop.backbones import family_in
from prefixprop.benchmarking.encoders import EncoderSize, find_device, frozen_on, random_tokens, twin_of
from prefixprop.benchmarking.timing import Run, Timing, measure_in_turns
from prefixprop.config import PrefixPropagationConfig, PrefixTuningConfig

PASSES = ("forward", "step")
OURS, THEIRS = "prefixprop", "Hugging Face"
WHOLE_MODEL, LORA = "whole model", "LoRA"
# A prefix beside the frozen model, and which options it has; LoRA stands for its config.
_PREFIXES: dict[str, tuple[Any, dict[str, Any]]] = {
    "propagation": (PrefixPropagationConfig, {}),
    "propagation, gate": (PrefixPropagationConfig, {"gate": True}),
    "kernel exp": (PrefixPropagationConfig, {"kernel": "exp"}),
    "kernel rbf, α per head": (PrefixPropagationConfig, {"kernel": "rbf", "alpha_mode": "head"}),
    "prefix-tuning": (PrefixTuningConfig, {}),
    "prefix-tuning, gate": (PrefixTuningConfig, {"gate": True}),
    "propagation and LoRA": (PrefixPropagationConfig, {"lora": LORA}),
    "prefix-tuning and LoRA": (PrefixTuningConfig, {"lora": LORA}),
}
METHODS = (WHOLE_MODEL, LORA, *_PREFIXES)


@dataclass(frozen=True)
class AttentionCase:
    """A batch of documents of one length."""

    batch: int
    length: int
    global_tokens: int
    dropout: float
    method: str | None = None  # one of METHODS
    recorded: bool = False  # ours as a CUDA graph, as `train` plays steps of short documents


@dataclass(frozen=True)
class AttentionResult:
    """One pass over one case; `theirs` is None if Hugging Face's attention was not measured."""

    case: AttentionCase
    name: str  # of the pass
    ours: Timing
    theirs: Timing | None

    @property
    def ratio(self) -> float | None:
        """How many times as fast ours is."""
        if self.theirs is None or self.theirs.out_of_memory or self.ours.out_of_memory:
            return None
        return self.theirs.median / self.ours.median

    @property
    def microseconds_per_token(self) -> float | None:
        """Of ours: the same at every length where the growth is linear."""
        tokens = self.case.batch * self.case.length
        return None if self.ours.out_of_memory else 1e6 * self.ours.median / tokens


# What docs/performance.md reports, by device.
REPORTED_CASES = {
    "cuda": (
        AttentionCase(8, 4096, 9, 0.0),
        AttentionCase(8, 4096, 9, 0.1),
        AttentionCase(8, 4096, 200, 0.0),
        AttentionCase(32, 512, 9, 0.0),
        AttentionCase(32, 512, 9, 0.0, recorded=True),
        AttentionCase(2, 16384, 9, 0.0),
    ),
    "cpu": (AttentionCase(1, 4096, 9, 0.0), AttentionCase(1, 512, 9, 0.0), AttentionCase(1, 4096, 9, 0.1)),
}
# Lengths that show how time and memory grow: doubling up to here, that many tokens in every batch.
LONGEST = {"cuda": 32_768, "cpu": 4096}


def doubling_lengths(device: str) -> list[int]:
    return [512 << step for step in range((LONGEST[device] // 512).bit_length())]


def cases_of_lengths(
    lengths: Sequence[int], tokens: int, global_tokens: int, dropout: float
) -> tuple[AttentionCase, ...]:
    """A case for each length, with as many documents as make `tokens` tokens."""
    for length in lengths:
        if tokens % length:
            raise ValueError(
                f"A batch of {tokens} tokens is not a whole number of documents of {length}; choose a multiple of "
                f"every length ({', '.join(map(str, lengths))})."
            )
        if global_tokens > length:
            raise ValueError(f"{global_tokens} global tokens do not fit in a document of {length}.")
    return tuple(AttentionCase(tokens // length, length, global_tokens, dropout) for length in lengths)


def bench_attention(
    cases: Sequence[AttentionCase],
    size: EncoderSize,
    repeats: int,
    backend: str = "auto",
    with_hugging_face: bool = True,
    progress: Callable[[AttentionCase], object] = lambda case: None,
) -> Iterator[AttentionResult]:
    """Measure one case after the other; results are yielded as they are ready."""
    for case in cases:
        progress(case)
        yield from _bench_case(case, size, repeats, backend, with_hugging_face)


def _bench_case(
    case: AttentionCase, size: EncoderSize, repeats: int, backend: str, with_hugging_face: bool
) -> Iterator[AttentionResult]:
    device = find_device()
    gc.collect()  # the last case's models are in cycles, and would count as memory of this one
    torch.manual_seed(0)
    with torch.device(device):  # where random weights take less time
        base = frozen_on(AutoModel.from_config(size.config(case.length, case.dropout)), device)
    base.requires_grad_(case.method == WHOLE_MODEL)
    models: dict[str, Any] = {}
    if with_hugging_face and case.method not in _PREFIXES:  # these compute with our attention alone
        models[THEIRS] = _with_method(case.method, twin_of(base)).train(case.dropout > 0)
    models[OURS] = _with_method(case.method, base).train(case.dropout > 0)
    install(models[OURS], backend=backend)
    inputs = random_tokens(case.batch, case.length, device)
    if size.family == "longformer":
        inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
        inputs["global_attention_mask"][:, : case.global_tokens] = 1
    for name, run in (("forward", _forward), ("step", _step if case.method is None else _whole_step)):
        runs = {who: run(which, inputs) for who, which in models.items()}
        if case.recorded:
            runs[OURS] = _recorded(runs[OURS])
        timings = measure_in_turns(runs, device, repeats)
        yield AttentionResult(case, name, timings[OURS], timings.get(THEIRS))


def _recorded(run: Run) -> Run:
    for _ in range(2):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _with_method(method: str | None, model: Any) -> Any:
    """The model with what the method trains beside it."""
    if method is None or method == WHOLE_MODEL:
        return model
    targets = list(family_in(model).lora_targets)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=targets)
    if method == LORA:
        return get_peft_model(model, lora)
    config, options = _PREFIXES[method]
    options = {name: lora if value == LORA else value for name, value in options.items()}
    return get_peft_model(model, config(num_virtual_tokens=8, **options))


def _forward(model: Any, inputs: dict[str, torch.Tensor]) -> Run:
    def run() -> None:
        with torch.no_grad():
            model(**inputs)

    return run


def _step(model: Any, inputs: dict[str, torch.Tensor]) -> Run:
    masks = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}

    def run() -> None:
        embedded = model.get_input_embeddings()(inputs["input_ids"]).requires_grad_()
        model(inputs_embeds=embedded, **masks).last_hidden_state.sum().backward()

    return run


def _whole_step(model: Any, inputs: dict[str, torch.Tensor]) -> Run:
    def run() -> None:
        model(**inputs).last_hidden_state.sum().backward()
        model.zero_grad()

    return run

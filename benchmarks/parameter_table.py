"""The table of docs/methods.md: every method with its equation and what it trains at the size of longformer-base.

    python benchmarks/parameter_table.py

j = 8, rank 8. Nothing is computed and no weights are read: the model has shapes only. The head is left out. How long
a step takes is read from results/bench/methods.json, which `prefixprop bench attention --methods` wrote.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import LongformerConfig, LongformerForSequenceClassification
from transformers.utils import logging

from prefixprop import count_parameters
from prefixprop.settings.methods import METHODS
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.trainable import build_trainable

MEASURED = Path(__file__).parents[1] / "results" / "bench" / "methods.json"
# The page has the equations themselves above the table. Behind them, what the benchmark calls the method.
EQUATIONS = {
    "prefix-propagation": ("Eq. 1", "propagation"),
    "prefix-propagation, gate": ("Eq. 1 with g(l)·P(l)", "propagation, gate"),
    "prefix-tuning": ("Eq. 2", "prefix-tuning"),
    "prefix-tuning, gate": ("Eq. 2 with g(l)·P_v", "prefix-tuning, gate"),
    "lora": ("x·W + (lora_alpha / r)·x·A·B", "LoRA"),
    "prefix-propagation+lora": ("Eq. 1 and LoRA's", "propagation and LoRA"),
    "prefix-tuning+lora": ("Eq. 2 and LoRA's", "prefix-tuning and LoRA"),
    "head-only": ("", None),
    "fine-tuning": ("", "whole model"),
}


def table() -> str:
    """In Markdown."""
    assert {row.partition(",")[0] for row in EQUATIONS} == set(METHODS)
    lines = [
        "| method | equation | trained parameters | of the backbone | a step |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    results = json.loads(MEASURED.read_text(encoding="utf-8"))["results"]
    steps = {each["method"]: 1000 * each["prefixprop"]["median_s"] for each in results if each["pass"] == "step"}
    for row, (equation, name) in EQUATIONS.items():
        trained, backbone = counted(row.partition(",")[0], gate=row.endswith("gate"))
        step = "" if name is None else f"{steps[name]:.1f} ms"
        lines.append(f"| {row} | {equation} | {trained:,} | {100 * trained / backbone:.4f} % | {step} |")
    return "\n".join(lines)


def counted(method: str, gate: bool) -> tuple[int, int]:
    """What a method trains without the head, and the whole encoder."""
    config = LongformerConfig(max_position_embeddings=4098, type_vocab_size=1, vocab_size=50265, num_labels=2)
    with torch.device("meta"):
        settings = RunSettings(method=method, num_virtual_tokens=8, lora_rank=8, gate=gate)
        count = count_parameters(build_trainable(LongformerForSequenceClassification(config), settings))
    return count.trainable - count.head, count.backbone


if __name__ == "__main__":
    logging.set_verbosity_error()
    print(table())

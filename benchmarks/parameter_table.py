"""The table of docs/methods.md: every method with its equation and what it trains at the size of longformer-base.

    python benchmarks/parameter_table.py

j = 8, rank 8. Nothing is computed and no weights are read: the model has shapes only. The head is left out.
"""

from __future__ import annotations

import torch
from transformers import LongformerConfig, LongformerForSequenceClassification
from transformers.utils import logging

from prefixprop import count_parameters
from prefixprop.settings.methods import METHODS
from prefixprop.settings.run_settings import RunSettings
from prefixprop.training.trainable import build_trainable

# The page has the equations themselves above the table.
EQUATIONS = {
    "prefix-propagation": "Eq. 1",
    "prefix-propagation, gate": "Eq. 1 with g(l)·P(l)",
    "prefix-tuning": "Eq. 2",
    "prefix-tuning, gate": "Eq. 2 with g(l)·P_v",
    "lora": "x·W + (lora_alpha / r)·x·A·B",
    "prefix-propagation+lora": "Eq. 1 and LoRA's",
    "prefix-tuning+lora": "Eq. 2 and LoRA's",
    "head-only": "",
    "fine-tuning": "",
}


def table() -> str:
    """In Markdown."""
    assert {row.partition(",")[0] for row in EQUATIONS} == set(METHODS)
    lines = ["| method | equation | trained parameters | of the backbone |", "| --- | --- | ---: | ---: |"]
    for row, equation in EQUATIONS.items():
        trained, backbone = counted(row.partition(",")[0], gate=row.endswith("gate"))
        lines.append(f"| {row} | {equation} | {trained:,} | {100 * trained / backbone:.4f} % |")
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

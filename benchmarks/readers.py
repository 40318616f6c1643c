"""Readers: a training step and the answers of many prefixes in one pass, beside one propagated prefix.

    python benchmarks/readers.py --size base --batch 8 --length 4096 --readers 1 64 256

Every step reads the text anew, as where its states are not kept, and includes dropout, the loss, the heads, clipping
and AdamW. Readers have 8 virtual tokens. Each step is synchronised, as a training loop does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import get_peft_model
from transformers import AutoModelForSequenceClassification

from prefixprop import PrefixPropagationConfig
from prefixprop.attention import install
from prefixprop.backbones import find_backbone
from prefixprop.models.gpu import hold_frozen_in_bfloat16
from prefixprop.progress import Progress
from prefixprop.train.bank_trainer import BankTrainer, ReaderPlan, Schedule
from prefixprop.train.text_states import TextStates
from prefixprop.tuners.reader_bank import ReaderBank, new_reader

import measuring
from measuring import DEVICE, ON_GPU

LENGTH, CLASSES = 8, 18


def build(options: Any) -> Any:
    config = measuring.encoder_config(
        options.model, options.size, options.length, options.dropout, num_labels=CLASSES
    )
    for field in ("attention_probs_dropout_prob", "attention_dropout"):
        if hasattr(config, field):
            setattr(config, field, 0.0)
    return AutoModelForSequenceClassification.from_config(config)


def precision() -> Any:
    return torch.autocast(DEVICE, torch.bfloat16) if ON_GPU else contextlib.nullcontext()


def measure_readers(count: int, options: Any) -> dict[str, Any]:
    """A step and the answers of so many readers."""
    model = build(options).requires_grad_(False)
    if ON_GPU:
        hold_frozen_in_bfloat16(model)
    install(model.to(DEVICE))
    backbone = find_backbone(model)
    generator = np.random.default_rng(0)
    ids = [generator.integers(5, 5000, options.length).astype(np.int32) for _ in range(options.batch)]
    text = TextStates(backbone, ids, 1, precision, options.batch * options.length, False, options.length)
    bank = ReaderBank(backbone, [new_reader(backbone, LENGTH, CLASSES, seed) for seed in range(count)], 0.1)
    plans = [ReaderPlan(0, 1e-3, seed, None) for seed in range(count)]
    labels, folds = np.zeros((1, options.batch), int), np.full((1, options.batch), -2)
    schedule = Schedule(1000, options.batch, 0.1, 0.01, 1.0, 0)
    at_once = (options.batch, count)
    trainer = BankTrainer(bank, plans, text, labels, folds, schedule, precision, at_once, Progress())
    steps = trainer.train(trainer.steps)
    everything, readers = list(range(options.batch)), list(range(count))
    runs: dict[str, Callable[[], object]] = {
        "text": torch.no_grad()(partial(text, everything)),
        "step": partial(next, steps),
        "answers": partial(trainer.answer, text, everything, readers),
    }
    return {"readers": str(count), **measuring.measure_in_turns(runs, options.repeats)}


def measure_propagation(options: Any) -> dict[str, Any]:
    """A step of one propagated prefix, with AdamW."""
    model = get_peft_model(build(options), PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=LENGTH))
    if ON_GPU:
        hold_frozen_in_bfloat16(model)
    install(model.to(DEVICE).train())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    ids = torch.randint(5, 5000, (options.batch, options.length), device=DEVICE)
    labels = torch.zeros(options.batch, dtype=torch.long, device=DEVICE)

    def step() -> None:
        with precision():
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return {"readers": "one propagated prefix", **measuring.measure_in_turns({"step": step}, options.repeats)}


def main() -> None:
    parser = measuring.make_parser(__doc__, repeats=10, batch=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 64, 256])
    options = parser.parse_args()
    results = [measure_propagation(options), *(measure_readers(count, options) for count in options.readers)]
    rows = []
    for result in results:
        peak = result["step"].peak_gib
        row = {"": result["readers"], **{name: str(result.get(name, "")) for name in ("text", "step", "answers")}}
        rows.append(row | {"peak GiB of a step": "" if peak is None else f"{peak:.1f}"})
    measuring.publish(options, "readers", rows, results=results)


if __name__ == "__main__":
    main()

"""What length-grouped batches, padded to their own longest, save against padding every document to 4088 tokens.

    python benchmarks/batching.py                          # Hyperpartisan, which ships with the package
    python benchmarks/batching.py --task newsgroups --data-dir FOLDER

Counts the tokens, padding included, that one epoch of training reads in each of three ways. Then trains the embedded
model, prefix-propagation without dropout, on batches drawn at random from the epoch, and estimates from their time
per token how long the epoch takes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from prefixprop.data import ClassificationTask, encode_documents, load_task
from prefixprop.models import load_default
from prefixprop.train import RunSettings
from prefixprop.train.trainable import build_trainable
from prefixprop.train.trainer import LengthGroupedOrder

REFERENCE_LENGTH = 4088  # the authors' released code pads every document to this
MAX_LENGTH = 4096

Batch = list[int]


def batches_in_order(order: Sequence[int], size: int) -> list[Batch]:
    return [list(order[start : start + size]) for start in range(0, len(order), size)]


def tokens_read(batches: Sequence[Batch], lengths: Sequence[int], padded_to: int | None = None) -> int:
    """Tokens of all batches, padding included."""
    return sum(len(batch) * (padded_to or max(lengths[place] for place in batch)) for batch in batches)


def seconds_per_token(
    model: nn.Module, texts: Sequence[Sequence[int]], batches: Sequence[Batch], padded_to: int | None
) -> float:
    """Mean time of a token in training, forward and backward; padding is read like anything else."""
    started = time.perf_counter()
    for batch in batches:
        length = padded_to or max(len(texts[place]) for place in batch)
        ids = torch.ones(len(batch), length, dtype=torch.long)  # 1 is the padding
        for row, place in enumerate(batch):
            text = torch.as_tensor(texts[place])[:length]
            ids[row, : len(text)] = text
        labels = torch.zeros(len(batch), dtype=torch.long)
        model(input_ids=ids, attention_mask=(ids != 1).long(), labels=labels).loss.backward()
        model.zero_grad()
    return (time.perf_counter() - started) / tokens_read(batches, [len(text) for text in texts], padded_to)


def drawn(batches: Sequence[Batch], lengths: Sequence[int], padded_to: int | None, tokens: int) -> list[Batch]:
    """Batches drawn at random, because the first of grouped ones is the longest, until they have so many tokens."""
    chosen: list[Batch] = []
    for batch in random.Random(1).sample(batches, len(batches)):
        if tokens_read(chosen, lengths, padded_to) >= tokens:
            break
        chosen.append(batch)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="hyperpartisan")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--batch-size", type=int, default=8, help="documents at once, of a step of 32")
    parser.add_argument("--tokens", type=int, default=30_000, help="how many are timed in each way")
    choices = parser.parse_args()
    task = load_task(choices.task, choices.data_dir)
    if not isinstance(task, ClassificationTask):
        parser.error("--task: choose one of documents, not of questions")
    factory, tokenizer = load_default()
    encoded = encode_documents([document.text for document in task.train], tokenizer, MAX_LENGTH)
    texts, size = encoded.input_ids, choices.batch_size
    lengths = [len(text) for text in texts]
    shuffled = random.Random(1).sample(range(len(lengths)), len(lengths))
    ways = {
        "padded to 4088 (reference)": (batches_in_order(shuffled, size), REFERENCE_LENGTH),
        "padded to the longest, random": (batches_in_order(shuffled, size), None),
        "padded to the longest, grouped": (
            batches_in_order(list(LengthGroupedOrder(lengths, RunSettings().batch_size, seed=1)), size),
            None,
        ),
    }
    settings = RunSettings(task=choices.task, num_virtual_tokens=8)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(1)
    model = build_trainable(factory("SEQ_CLS", num_labels=task.num_labels, **no_dropout), settings).train()

    table = Table(title=f"{task.name}: {len(lengths):,} documents, {sum(lengths):,} tokens, batches of {size}")
    for column in (
        "batches",
        "tokens per epoch",
        "of the reference",
        "padding",
        "tokens/s",
        "hours per epoch",
        "speed-up",
    ):
        table.add_column(column, justify="left" if column == "batches" else "right")
    reference_tokens = reference_seconds = 0.0
    for name, (batches, padded_to) in ways.items():
        tokens = tokens_read(batches, lengths, padded_to)
        sample = drawn(batches, lengths, padded_to, choices.tokens)
        per_token = seconds_per_token(model, texts, sample, padded_to)
        seconds = tokens * per_token
        reference_tokens, reference_seconds = reference_tokens or tokens, reference_seconds or seconds
        table.add_row(
            name,
            f"{tokens:,}",
            f"{tokens / reference_tokens:.3f}",
            f"{1 - sum(lengths) / tokens:.1%}",
            f"{1 / per_token:,.0f}",
            f"{seconds / 3600:.2f}",
            f"{reference_seconds / seconds:.1f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

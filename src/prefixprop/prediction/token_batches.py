"""Running a model over texts of all lengths: like with like, in batches of about as many tokens each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prefixprop.models.attention_without_cudnn import without_cudnn
from prefixprop.tasks.batches import pad_documents
from prefixprop.tasks.encoding import TokenIds


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """The places of all texts, longest first, in batches of at most `batch_tokens` tokens, padding included.

    A text longer than that is a batch of its own.
    """
    batch: list[int] = []
    longest = 0
    # Longest first: where memory does not suffice, it shows at once.
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch = []
        if not batch:
            longest = lengths[place]
        batch.append(place)
    if batch:
        yield batch


def classify(
    model: Any, input_ids: Sequence[TokenIds], pad_token_id: int, batch_tokens: int, bf16: bool
) -> NDArray[np.float64]:
    """The logits of every text [texts, classes], in the order given."""
    device = next(model.parameters()).device
    logits: dict[int, NDArray[np.float64]] = {}
    for places in batches_by_length([len(ids) for ids in input_ids], batch_tokens):
        rows = [input_ids[place] for place in places]
        batch = {name: tensor.to(device) for name, tensor in pad_documents(rows, pad_token_id).items()}
        with inference(device, bf16, lower="batch_tokens (--batch-tokens)"):
            outputs = model(**batch).logits
        logits.update(zip(places, outputs.double().cpu().numpy(), strict=True))
    return np.stack([logits[place] for place in range(len(input_ids))])


@contextlib.contextmanager
def inference(device: torch.device, bf16: bool, lower: str) -> Iterator[None]:
    """Without gradients, in bf16 where that pays; `lower` is the setting to lower where memory is short."""
    # On the CPU bf16 is slower than float32 by far.
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=bf16 and device.type == "cuda")
    try:
        with torch.inference_mode(), autocast, without_cudnn():
            yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"The GPU has not enough memory ({str(error).splitlines()[0]}); lower {lower}, or free some of it."
        ) from error

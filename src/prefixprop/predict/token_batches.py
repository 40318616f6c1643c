"""Running a model over texts of all lengths: similar lengths together, in batches of about equally many tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prefixprop.data.batches import batches_by_length, pad_documents
from prefixprop.data.encoding import TokenIds
from prefixprop.models.gpu import CudaGraph, can_use_cuda_graphs, padded_length, without_cudnn


def classify(
    model: Any,
    input_ids: Sequence[TokenIds],
    pad_token_id: int,
    batch_tokens: int,
    bf16: bool,
    max_length: int,
    adapters: Sequence[str | None] = (None,),
) -> list[NDArray[np.float64]]:
    """The logits of every text [texts, classes], in the order given, with each of the model's adapters.

    None is the active one. Where adapters have different numbers of classes, -inf may follow those that one has. The
    model reads `max_length` tokens, and no text has more.
    """
    device = next(model.parameters()).device
    lengths = [max(1, len(ids)) for ids in input_ids]  # an empty text is one padding token
    run = partial(_logits, model)
    if can_use_cuda_graphs(model):
        lengths = [padded_length(length, max_length) for length in lengths]
        run = partial(_replayed_logits, model)
    logits: dict[tuple[int, int], NDArray[np.float64]] = {}
    for indices in batches_by_length(lengths, batch_tokens):
        rows = [input_ids[index] for index in indices]
        padded = pad_documents(rows, pad_token_id, length=lengths[indices[0]])
        batch = {name: tensor.to(device) for name, tensor in padded.items()}
        with inference(device, bf16, lower="batch_tokens (--batch-tokens)"):
            outputs = _with_each(run, batch, adapters, batch_tokens)
        for place, output in enumerate(outputs):
            numbers = output.double().cpu().numpy()
            logits.update({(place, index): row for index, row in zip(indices, numbers, strict=True)})
    return [np.stack([logits[place, index] for index in range(len(input_ids))]) for place in range(len(adapters))]


def _with_each(
    run: Callable[..., Tensor], batch: dict[str, Tensor], adapters: Sequence[str | None], batch_tokens: int
) -> Sequence[Tensor]:
    """Logits of a batch with each adapter: in one pass if the batch fits in as often as there are adapters.

    A full batch is no faster for being mixed; one of a few short documents is.
    """
    if len(adapters) == 1 and adapters[0] is None:
        return [run(**batch)]
    tokens = batch["input_ids"]
    count = len(tokens)
    if len(adapters) * tokens.numel() > batch_tokens:
        return [run(**batch, adapter_names=[adapter] * count) for adapter in adapters]
    repeated = {name: tensor.repeat(len(adapters), 1) for name, tensor in batch.items()}
    names = [adapter for adapter in adapters for _ in range(count)]
    return run(**repeated, adapter_names=names).split(count)


def _logits(model: Any, **given: Any) -> Tensor:
    return model(**given).logits


_REPLAYED: WeakKeyDictionary[Any, CudaGraph] = WeakKeyDictionary()


def _replayed_logits(model: Any, **given: Any) -> Tensor:
    if "adapter_names" in given:  # a batch that mixes adapters sends lists to the device, which no recording can do
        return _logits(model, **given)
    if model not in _REPLAYED:
        weak: Any = ref(model)  # or the model would be kept by what is kept as long as the model
        _REPLAYED[model] = CudaGraph(lambda inputs: _logits(weak(), **inputs))
    # Which adapter is active, and in which type it is computed, is part of a recording.
    variant = str(getattr(model, "active_adapter", None)), torch.is_autocast_enabled(given["input_ids"].device.type)
    return _REPLAYED[model](given, variant)


@contextlib.contextmanager
def inference(device: torch.device, bf16: bool, lower: str) -> Iterator[None]:
    """Without gradients, in bf16 where that is faster; `lower` is the setting to lower if memory is short."""
    # On the CPU bf16 is far slower than float32.
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=bf16 and device.type == "cuda")
    try:
        with torch.inference_mode(), autocast, without_cudnn():
            yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"The GPU does not have enough memory ({str(error).splitlines()[0]}); lower {lower}, or free some memory."
        ) from error

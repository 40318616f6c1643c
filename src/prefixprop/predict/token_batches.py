"""Running a model over texts of all lengths: similar lengths together, in batches of about equally many tokens.

Any number of threads may do so: on a device their batches take turns, in the order in which they come.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prefixprop.data.tokens import TokenIds, batches_by_length, pad_documents
from prefixprop.models.gpu import CudaGraph, can_use_cuda_graphs, padded_count, padded_length, without_cudnn

Logits = list[NDArray[np.float64]]
Copied = Callable[[], NDArray[np.float64]]


def start_classifying(
    model: Any,
    input_ids: Sequence[TokenIds],
    pad_token_id: int,
    batch_tokens: int,
    bf16: bool,
    max_length: int,
    adapters: Sequence[str | None] = (None,),
) -> Callable[[], Logits]:
    """A function that waits for the logits of every text [texts, classes], with each of the model's adapters.

    None is the active one. Where adapters have different numbers of classes, -inf may follow those that one has. The
    model reads `max_length` tokens, and no text has more. On a GPU the batches are only queued here.
    """
    device = next(model.parameters()).device
    # A batch that mixes adapters sends lists to the device, which no recording can do.
    is_recorded = can_use_cuda_graphs(model) and list(adapters) == [None]
    run = partial(_replayed_logits if is_recorded else _logits, model)
    answers: list[tuple[list[int], Sequence[Copied]]] = []
    for indices, batch in padded_batches(input_ids, pad_token_id, batch_tokens, max_length if is_recorded else None):
        with inference(device, bf16, lower="batch_tokens (--batch-tokens)"):
            found = _with_each(run, to_device(batch, device), adapters, batch_tokens)
            answers.append((indices, [start_copying(logits) for logits in found]))
    return partial(_fetched, answers, len(input_ids), len(adapters))


def padded_batches(
    input_ids: Sequence[TokenIds], pad_token_id: int, batch_tokens: int, recorded_up_to: int | None
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Texts of similar length together: their indices, and their tokens padded to one length.

    For recorded passes, which read so many tokens, batches have few different shapes: they are padded further, and
    filled up with copies of the last text.
    """
    lengths = [max(1, len(ids)) for ids in input_ids]  # an empty text is one padding token
    if recorded_up_to is not None:
        lengths = [padded_length(length, recorded_up_to) for length in lengths]
    for indices in batches_by_length(lengths, batch_tokens):
        length, rows = lengths[indices[0]], [input_ids[index] for index in indices]
        if recorded_up_to is not None:
            rows += rows[-1:] * (padded_count(len(rows), batch_tokens // length) - len(rows))
        yield indices, pad_documents(rows, pad_token_id, length=length)


def _fetched(answers: Sequence[tuple[list[int], Sequence[Copied]]], texts: int, adapters: int) -> Logits:
    logits: dict[tuple[int, int], NDArray[np.float64]] = {}
    for indices, outputs in answers:
        for place, output in enumerate(outputs):
            numbers = output()[: len(indices)]
            logits.update({(place, index): row for index, row in zip(indices, numbers, strict=True)})
    return [np.stack([logits[place, index] for index in range(texts)]) for place in range(adapters)]


def to_device(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The batch on the device; the host does not wait until it is copied to a GPU."""
    if device.type != "cuda":
        return batch
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in batch.items()}


def start_copying(output: Tensor) -> Copied:
    """A function that waits for the values of a tensor, but for nothing that the GPU is given after this call."""
    if output.device.type != "cuda":
        return lambda: output.double().cpu().numpy()
    values = output.double().to("cpu", non_blocking=True)  # into pinned memory
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> NDArray[np.float64]:
        copied.synchronize()
        return values.numpy()

    return wait


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
    if model not in _REPLAYED:
        weak: Any = ref(model)  # or the model would be kept by what is kept as long as the model
        _REPLAYED[model] = CudaGraph(lambda inputs: _logits(weak(), **inputs))
    # Which adapter is active, and in which type it is computed, is part of a recording.
    variant = str(getattr(model, "active_adapter", None)), torch.is_autocast_enabled(given["input_ids"].device.type)
    return _REPLAYED[model](given, variant)


class _Turns:
    """A lock that threads get in the order in which they ask for it."""

    def __init__(self) -> None:
        self._change, self._line = threading.Lock(), deque[threading.Lock]()

    def __enter__(self) -> None:
        my_turn = threading.Lock()
        my_turn.acquire()
        with self._change:
            self._line.append(my_turn)
            if len(self._line) == 1:
                my_turn.release()
        my_turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._line.popleft()
            if self._line:
                self._line[0].release()


_TURNS: defaultdict[torch.device, _Turns] = defaultdict(_Turns)


@contextlib.contextmanager
def inference(device: torch.device, bf16: bool, lower: str) -> Iterator[None]:
    """Without gradients, in bf16 where that is faster; `lower` is the setting to lower if memory is short."""
    on_gpu = device.type == "cuda"
    # On the CPU bf16 is far slower than float32.
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=bf16 and on_gpu)
    current = torch.cuda.device(device) if on_gpu else contextlib.nullcontext()  # which CUDA graphs record
    try:
        with _TURNS[device], current, torch.inference_mode(), autocast, without_cudnn():
            yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"The GPU does not have enough memory ({str(error).splitlines()[0]}); lower {lower}, or free some memory."
        ) from error

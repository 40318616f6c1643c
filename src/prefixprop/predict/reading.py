"""One frozen encoder and the readers of any number of runs on it: every text is read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from prefixprop.backbones import find_backbone
from prefixprop.data.batches import pad_documents
from prefixprop.data.encoding import TokenIds
from prefixprop.predict.token_batches import batches_by_length, inference
from prefixprop.tuners.reader_bank import ReaderBank, ReaderWeights
from prefixprop.tuners.reading import text_to_read


class ReadingEncoder:
    """An encoder in evaluation mode, and readers in the order in which they were added."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.backbone = find_backbone(model)
        self._readers: list[ReaderWeights] = []
        self._banks: dict[int, tuple[list[int], ReaderBank]] = {}  # by length of their prefixes

    @property
    def config(self) -> Any:
        return self.model.config

    def add(self, readers: Sequence[ReaderWeights]) -> tuple[int, ...]:
        """Add readers; returns their numbers."""
        first = len(self._readers)
        self._readers += readers
        self._banks.clear()
        return tuple(range(first, len(self._readers)))

    def logits(
        self,
        input_ids: Sequence[TokenIds],
        runs: Sequence[Sequence[int]],
        pad_token_id: int,
        batch_tokens: int,
        bf16: bool,
    ) -> list[NDArray[np.float64]]:
        """For every run, given by the numbers of its readers, what each says of texts [readers, texts, classes]."""
        device = next(self.model.parameters()).device
        classes = [reader.classes for reader in self._readers]
        found = {number: np.empty((len(input_ids), classes[number])) for run in runs for number in run}
        for indices in batches_by_length([max(1, len(ids)) for ids in input_ids], batch_tokens):
            padded = pad_documents([input_ids[index] for index in indices], pad_token_id)
            with inference(device, bf16, lower="batch_tokens (--batch-tokens)"):
                text = text_to_read(self.backbone, {name: tensor.to(device) for name, tensor in padded.items()})
                for numbers, bank in self._all_banks(device):
                    places = [place for place, number in enumerate(numbers) if number in found]
                    logits = bank(text, torch.tensor(places, device=device)).double().cpu().numpy() if places else ()
                    for place, of_reader in zip(places, logits, strict=True):
                        found[numbers[place]][indices] = of_reader[:, : classes[numbers[place]]]
        return [np.stack([found[number] for number in run]) for run in runs]

    def _all_banks(self, device: torch.device) -> list[tuple[list[int], ReaderBank]]:
        if not self._banks:
            lengths = [reader.prefix.shape[1] for reader in self._readers]
            for length in sorted(set(lengths)):
                numbers = [number for number, own in enumerate(lengths) if own == length]
                bank = ReaderBank(self.backbone, [self._readers[number] for number in numbers])
                self._banks[length] = (numbers, bank.to(device).eval())
        return list(self._banks.values())

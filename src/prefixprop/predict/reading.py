"""One frozen encoder and the readers of any number of runs on it: every text is read once for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from prefixprop.attention.pattern import AttentionPattern
from prefixprop.backbones import find_backbone
from prefixprop.backbones.base import Text
from prefixprop.data.tokens import TokenIds, pad_documents
from prefixprop.predict.token_batches import batches_by_length, inference, to_device
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
        hidden: Sequence[tuple[int, int, int]] = (),
    ) -> list[NDArray[np.float64]]:
        """For every run, given by the numbers of its readers, what each says of texts [readers, texts, classes].

        Behind these follows, for every (text, start, end) of `hidden`, what they say of that text if its tokens
        [start, end) are hidden from them. The text's states are those of the whole text, and are computed once.
        """
        device = next(self.model.parameters()).device
        count = len(input_ids) + len(hidden)
        found = {number: np.empty((count, self._readers[number].classes)) for run in runs for number in run}
        hidden_in: defaultdict[int, list[int]] = defaultdict(list)
        for place, (index, _, _) in enumerate(hidden):
            hidden_in[index].append(place)
        for indices in batches_by_length([max(1, len(ids)) for ids in input_ids], batch_tokens):
            padded = pad_documents([input_ids[index] for index in indices], pad_token_id)
            a_pass = partial(inference, device, bf16, lower="batch_tokens (--batch-tokens)")
            with a_pass():
                text = text_to_read(self.backbone, to_device(padded, device))
                self._read(text, indices, found)
            for row, index in enumerate(indices):
                at_once = max(1, batch_tokens // padded["input_ids"].shape[1])
                for start in range(0, len(hidden_in[index]), at_once):
                    places = hidden_in[index][start : start + at_once]
                    spans = [hidden[place][1:] for place in places]
                    with a_pass():
                        self._read(_without(text, row, spans), [len(input_ids) + place for place in places], found)
        return [np.stack([found[number] for number in run]) for run in runs]

    def _read(self, text: Text, indices: Sequence[int], found: dict[int, NDArray[np.float64]]) -> None:
        """What readers say of a batch of texts, which are those of these indices."""
        device = text.states[0].device
        for numbers, bank in self._all_banks(device):
            places = [place for place, number in enumerate(numbers) if number in found]
            logits = bank(text, torch.tensor(places, device=device)).double().cpu().numpy() if places else ()
            for place, of_reader in zip(places, logits, strict=True):
                answers = found[numbers[place]]
                answers[indices] = of_reader[:, : answers.shape[1]]

    def _all_banks(self, device: torch.device) -> list[tuple[list[int], ReaderBank]]:
        if not self._banks:
            lengths = [reader.prefix.shape[1] for reader in self._readers]
            for length in sorted(set(lengths)):
                numbers = [number for number, own in enumerate(lengths) if own == length]
                bank = ReaderBank(self.backbone, [self._readers[number] for number in numbers])
                self._banks[length] = (numbers, bank.to(device).eval())
        return list(self._banks.values())


def _without(text: Text, row: int, spans: Sequence[tuple[int, int]]) -> Text:
    """A text of a batch, as often as there are spans of tokens, each time with one of them hidden."""
    is_masked = text.pattern.is_masked[row].repeat(len(spans), 1)
    for version, span in zip(is_masked, spans, strict=True):
        version[slice(*span)] = True
    pattern = AttentionPattern(is_masked, torch.zeros_like(is_masked))
    return Text(tuple(states[row : row + 1] for states in text.states), pattern)

"""One frozen encoder and the readers of any number of runs on it: every text is read once for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prefixprop.attention.pattern import AttentionPattern
from prefixprop.backbones import find_backbone
from prefixprop.backbones.base import Text
from prefixprop.data.tokens import TokenIds
from prefixprop.models.gpu import CudaGraph, can_use_cuda_graphs
from prefixprop.predict.token_batches import Copied, Logits, inference, padded_batches, start_copying, to_device
from prefixprop.tuners.reader_bank import ReaderBank, ReaderWeights
from prefixprop.tuners.reading import text_to_read


class ReadingEncoder:
    """An encoder in evaluation mode, and readers in the order in which they were added."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.backbone = find_backbone(model)
        self._readers: list[ReaderWeights] = []
        self._banks: dict[str, tuple[list[int], ReaderBank]] = {}  # a bank for each length of prefixes
        self._recorded = CudaGraph(self._answers)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def add(self, readers: Sequence[ReaderWeights]) -> tuple[int, ...]:
        """Add readers; returns their numbers."""
        first = len(self._readers)
        self._readers += readers
        self._banks.clear()
        self._recorded = CudaGraph(self._answers)  # recordings have the old banks
        return tuple(range(first, len(self._readers)))

    def start(
        self,
        input_ids: Sequence[TokenIds],
        runs: Sequence[Sequence[int]],
        pad_token_id: int,
        batch_tokens: int,
        bf16: bool,
        max_length: int,
        hidden: Sequence[tuple[int, int, int]] = (),
    ) -> Callable[[], Logits]:
        """A function that waits for what the readers of every run, given by numbers, say [readers, texts, classes].

        Behind these follows, for every (text, start, end) of `hidden`, what they say of that text if its tokens
        [start, end) are hidden from them. The text's states are those of the whole text, and are computed once. No
        text has more than `max_length` tokens.
        """
        device = self.device
        hidden_in: defaultdict[int, list[int]] = defaultdict(list)
        for place, (index, _, _) in enumerate(hidden):
            hidden_in[index].append(place)
        asked = {number for run in runs for number in run}
        in_banks = {
            name: [place for place, number in enumerate(numbers) if number in asked]
            for name, (numbers, _) in self._all_banks(device).items()
        }
        chosen = {name: places for name, places in in_banks.items() if places}
        readers = to_device({name: torch.tensor(places) for name, places in chosen.items()}, device)
        is_recorded = not hidden and can_use_cuda_graphs(self.model)
        a_pass = partial(inference, device, bf16, lower="batch_tokens (--batch-tokens)")
        answers: list[tuple[Sequence[int], dict[str, Copied]]] = []  # fetched later
        for indices, batch in padded_batches(
            input_ids, pad_token_id, batch_tokens, max_length if is_recorded else None
        ):
            if is_recorded:
                with a_pass():
                    answers.append((indices, _copied(self._recorded(to_device(batch, device) | readers, bf16))))
                continue
            with a_pass():
                text = text_to_read(self.backbone, to_device(batch, device))
                answers.append((indices, _copied(self._read(text, readers))))
            at_once = max(1, batch_tokens // batch["input_ids"].shape[1])
            for row, index in enumerate(indices):
                for start in range(0, len(hidden_in[index]), at_once):
                    places = hidden_in[index][start : start + at_once]
                    spans = [hidden[place][1:] for place in places]
                    with a_pass():
                        found = _copied(self._read(_without(text, row, spans), readers))
                    answers.append(([len(input_ids) + place for place in places], found))
        return partial(self._fetched, answers, chosen, len(input_ids) + len(hidden), runs)

    def _fetched(
        self,
        answers: Sequence[tuple[Sequence[int], dict[str, Copied]]],
        chosen: Mapping[str, list[int]],
        count: int,
        runs: Sequence[Sequence[int]],
    ) -> Logits:
        found: dict[int, NDArray[np.float64]] = {}
        for name, places in chosen.items():
            numbers = [self._banks[name][0][place] for place in places]
            found |= {number: np.empty((count, self._readers[number].classes)) for number in numbers}
            for indices, of_banks in answers:
                for number, of_reader in zip(numbers, of_banks[name](), strict=True):
                    found[number][indices] = of_reader[: len(indices), : found[number].shape[1]]
        return [np.stack([found[number] for number in run]) for run in runs]

    def _answers(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What readers say of a batch: its tokens, and for each bank the places of those that are asked."""
        batch = {name: tensor for name, tensor in inputs.items() if name not in self._banks}
        return self._read(text_to_read(self.backbone, batch), inputs)

    def _read(self, text: Text, readers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: bank(text, readers[name]) for name, (_, bank) in self._banks.items() if name in readers}

    def _all_banks(self, device: torch.device) -> dict[str, tuple[list[int], ReaderBank]]:
        if not self._banks:
            lengths = [reader.prefix.shape[1] for reader in self._readers]
            for length in sorted(set(lengths)):
                numbers = [number for number, own in enumerate(lengths) if own == length]
                bank = ReaderBank(self.backbone, [self._readers[number] for number in numbers])
                self._banks[f"readers of {length}"] = (numbers, bank.to(device).eval())
        return self._banks


def _copied(of_banks: Mapping[str, Tensor]) -> dict[str, Copied]:
    return {name: start_copying(answers) for name, answers in of_banks.items()}


def _without(text: Text, row: int, spans: Sequence[tuple[int, int]]) -> Text:
    """A text of a batch, as often as there are spans of tokens, each time with one of them hidden."""
    is_masked = text.pattern.is_masked[row].repeat(len(spans), 1)
    for version, span in zip(is_masked, spans, strict=True):
        version[slice(*span)] = True
    pattern = AttentionPattern(is_masked, torch.zeros_like(is_masked))
    return Text(tuple(states[row : row + 1] for states in text.states), pattern)

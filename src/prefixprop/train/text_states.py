"""The states of the text that readers read: computed once, and kept where there is enough memory.

The states that enter each layer do not depend on what is trained, so they are the same in every epoch. They are
kept on the device that computes, or else in pinned memory of the host: copying a document's states to an H200 takes
0.6 to 0.8 times as long as computing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor

from prefixprop.backbones import Backbone
from prefixprop.backbones.base import Text
from prefixprop.data.tokens import TokenIds, batches_by_length, pad_documents
from prefixprop.models.gpu import padded_length
from prefixprop.progress import Progress
from prefixprop.tuners.reading import text_of, text_to_read

_SHARE = 0.5  # of the free memory that may be used
_CGROUP = Path("/sys/fs/cgroup/memory.max")  # the limit of a container


class TextStates:
    """The documents of a run as readers see them.

    Attributes:
        lengths: The tokens of each document.
        kept_on: Where the states stay between epochs; None if they are computed anew.
    """

    def __init__(
        self,
        backbone: Backbone,
        documents: Sequence[TokenIds],
        pad_token_id: int,
        precision: Callable[[], AbstractContextManager[object]],
        batch_tokens: int,
        keep: bool = True,
        max_length: int = 0,
    ) -> None:
        self.backbone, self.documents, self.pad_token_id = backbone, documents, pad_token_id
        self.precision, self.batch_tokens, self.max_length = precision, batch_tokens, max_length
        self.lengths = [max(1, len(ids)) for ids in documents]
        self.device = next(backbone.module.parameters()).device
        # That of the encoder's weights: autocast may compute states in a wider one.
        self._dtype = next(backbone.layers[0].parameters()).dtype
        config = backbone.config
        self.bytes = sum(self.lengths) * config.num_hidden_layers * config.hidden_size * self._dtype.itemsize
        self.kept_on = place_for(self.bytes, self.device) if keep else None
        self._kept: dict[int, Tensor] = {}  # [layers, tokens, hidden]

    def fill(self, progress: Progress) -> None:
        """Compute all states, if they are kept; always in the same batches, so that a resumed run has the same."""
        if self.kept_on is None:
            return
        done = 0
        for indices in self.batches(range(len(self.documents))):
            text = self.text(self._tokens(indices))
            for place, index in enumerate(indices):
                states = torch.stack([state[place, : self.lengths[index]] for state in text.states]).to(self._dtype)
                if self.kept_on != self.device:
                    pinned = self.device.type == "cuda"
                    states = torch.empty_like(states, device=self.kept_on, pin_memory=pinned).copy_(states)
                self._kept[index] = states
            done += len(indices)
            progress.advance("reading documents", done, len(self.documents))

    def batches(self, indices: Sequence[int]) -> Iterator[list[int]]:
        """Documents of similar length together, the longest first."""
        for batch in batches_by_length([self.lengths[index] for index in indices], self.batch_tokens):
            yield [indices[place] for place in batch]

    def inputs(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """What `text` makes a batch of: the documents' tokens, or their states where these are kept."""
        if self.kept_on is None:
            return self._tokens(indices)
        kept = [self._kept[index] for index in indices]
        longest = self._padded(max(state.shape[1] for state in kept))
        layers, _, hidden = kept[0].shape
        states = kept[0].new_zeros(layers, len(kept), longest, hidden, device=self.device)
        found = {"states": states}
        if any(state.shape[1] < longest for state in kept):
            lengths = torch.tensor([state.shape[1] for state in kept])
            found["attention_mask"] = (torch.arange(longest) < lengths[:, None]).to(self.device)
        for place, state in enumerate(kept):
            states[:, place, : state.shape[1]].copy_(state, non_blocking=True)
        return found

    def text(self, inputs: Mapping[str, Tensor]) -> Text:
        """A batch as readers see it."""
        if "states" in inputs:
            return text_of(inputs["states"].unbind(0), inputs.get("attention_mask"))
        with self.precision():
            return text_to_read(self.backbone, inputs)

    def _tokens(self, indices: Sequence[int]) -> dict[str, Tensor]:
        rows = [self.documents[index] for index in indices]
        padded = pad_documents(rows, self.pad_token_id, length=self._padded(max(1, *map(len, rows))))
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in padded.items()}

    def _padded(self, longest: int) -> int:
        return padded_length(longest, self.max_length) if self.device.type == "cuda" else longest


def place_for(size: int, device: torch.device) -> torch.device | None:
    """The first of the device and the host that has room for so many bytes in half of its free memory."""
    places = dict.fromkeys((device, torch.device("cpu")))
    return next((place for place in places if size <= _SHARE * free_memory(place)), None)


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = int(psutil.virtual_memory().available)
    if _CGROUP.is_file() and (limit := _CGROUP.read_text().strip()).isdigit():
        free = min(free, int(limit) - psutil.Process().memory_info().rss)
    return free

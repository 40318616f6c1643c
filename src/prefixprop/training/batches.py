"""The order of training documents: shuffled, but with documents of like length in one batch.

The reference pads every document to 4088 tokens; here a batch is padded to its own longest, and batches are made of
documents of like length, so that little of it is padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

# Documents are sorted within random groups of so many batches: long enough for batches of almost equal lengths, short
# enough that other documents meet in every epoch.
BATCHES_PER_GROUP = 50


class LengthGroupedOrder(Sampler[int]):
    """Places of documents, in an order that depends on seed and epoch alone.

    It does not depend on what else was drawn at random or on how many processes there are, so that a resumed run and
    a run on several devices read the very same batches. Consecutive `batch_size` places are one batch; the batches
    themselves are shuffled, so that a step of several accumulated batches has long and short documents. The first
    batch of all is the one with the longest document: if memory is too small, that is known at once.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed = lengths, batch_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        places = torch.randperm(len(self.lengths), generator=generator).tolist()
        size, group_size = self.batch_size, self.batch_size * BATCHES_PER_GROUP
        batches: list[list[int]] = []
        for start in range(0, len(places), group_size):
            group = sorted(places[start : start + group_size], key=lambda place: -self.lengths[place])
            batches += [group[first : first + size] for first in range(0, len(group), size)]
        # Only the very last batch can be short, and must stay last: the others are told apart by their size alone.
        last = [batches.pop()] if batches and len(batches[-1]) < size else []
        shuffled = [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]
        if shuffled:
            longest = max(range(len(shuffled)), key=lambda index: self.lengths[shuffled[index][0]])
            shuffled[0], shuffled[longest] = shuffled[longest], shuffled[0]
        for batch in shuffled + last:
            yield from batch

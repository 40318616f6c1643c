"""The order of training documents: shuffled, but with documents of like length in one step.

The reference pads every document to 4088 tokens; here a batch is padded to its own longest, and the documents of a
step are of like length, so that little of it is padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

# Documents are sorted by their length times a random factor, e^(0.15 z) with z normal. Sorted by length alone, a
# small data set would have the same batches in every epoch, and train worse.
_LENGTH_BLUR = 0.15


class LengthGroupedOrder(Sampler[int]):
    """Places of documents, in an order that depends on seed and epoch alone.

    It does not depend on what else was drawn at random, on how many processes there are, or on how many documents a
    device takes at once, so that a resumed run and a run on several devices take the very same steps. Consecutive
    `batch_size` indices are one step, longest document first, so that the parts of it that are computed one after the
    other are of like length too; steps themselves are in random order. The first step of the first epoch is the one
    with the longest document of all: if memory is too small, that is known at once.
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
        size = self.batch_size
        indices = torch.randperm(len(self.lengths), generator=generator).tolist()
        # What is left over makes a short step, which must be the last one; it is of any documents.
        full = len(indices) - len(indices) % size
        blur = torch.randn(len(indices), generator=generator, dtype=torch.float64).mul(_LENGTH_BLUR).exp().tolist()
        by_length = sorted(indices[:full], key=lambda index: self.lengths[index] * blur[index])
        steps = [by_length[start : start + size] for start in range(0, full, size)]
        steps = [steps[index] for index in torch.randperm(len(steps), generator=generator).tolist()]
        if self.epoch == 0 and steps:
            longest = max(range(len(steps)), key=lambda step: max(self.lengths[index] for index in steps[step]))
            steps[0], steps[longest] = steps[longest], steps[0]
        for step in (*steps, indices[full:]):
            yield from sorted(step, key=lambda index: -self.lengths[index])

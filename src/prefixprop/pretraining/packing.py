"""Documents packed into rows of full length, and the tokens of a row that are masked.

What a step reads depends on the seed, the step and the row alone: not on the number of devices, on how many rows one
computes at once, or on whether training was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MASKED = 0.15
REPLACED_BY_MASK, REPLACED_AT_RANDOM = 0.8, 0.1  # of those masked; the rest stay as they are

Ids = NDArray[np.int64]


class Vocabulary(Protocol):
    """What packing and masking need of a tokenizer."""

    cls_token_id: int
    sep_token_id: int
    mask_token_id: int

    def __len__(self) -> int: ...


class PackedRows:
    """Documents one after the other, a separator behind each, cut into rows of `length` tokens.

    A row is `[CLS] text [SEP]`. It begins wherever the row before it ended, and may hold the end of one document and
    the beginning of the next.
    """

    def __init__(
        self, documents: Sequence[NDArray], chosen: NDArray[np.int64], length: int, vocabulary: Vocabulary
    ) -> None:
        self.documents, self.chosen, self.vocabulary = documents, chosen, vocabulary
        self.length = length
        lengths = np.array([len(documents[index]) for index in chosen], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(lengths + 1)])  # of documents, separators counted
        self._pass: tuple[tuple[int, int], NDArray[np.int64], int] | None = None

    def count(self, shift: int = 0) -> int:
        """How many full rows there are from token `shift` on."""
        return max(0, int(self.starts[-1] - shift) // (self.length - 2))

    def row(self, number: int, shift: int = 0) -> Ids:
        start = shift + number * (self.length - 2)
        stop = start + self.length - 2
        row = np.full(self.length, self.vocabulary.sep_token_id, dtype=np.int64)
        row[0] = self.vocabulary.cls_token_id
        document = int(np.searchsorted(self.starts, start, side="right")) - 1
        while document < len(self.chosen) and self.starts[document] < stop:
            first = int(self.starts[document])
            tokens = self.documents[int(self.chosen[document])][max(0, start - first) : stop - first]
            begin = 1 + max(0, first - start)
            row[begin : begin + len(tokens)] = tokens
            document += 1
        return row

    @property
    def rows_per_pass(self) -> int:
        """How many rows every pass over the text has, wherever its first one begins."""
        return self.count(self.length - 3)

    def drawn(self, index: int, seed: int) -> Ids:
        """Row number `index` of all that training reads: in every pass in a new order, and cut at other places."""
        number, within = divmod(index, self.rows_per_pass)
        if self._pass is None or self._pass[0] != (number, seed):
            generator = np.random.default_rng([seed, number])
            shift = int(generator.integers(self.length - 2))
            self._pass = ((number, seed), generator.permutation(self.rows_per_pass), shift)
        _, order, shift = self._pass
        return self.row(int(order[within]), shift)


def cut(row: Ids, length: int) -> list[Ids]:
    """A row's text in rows of `length` tokens of their own; what does not fill one is left out."""
    text, size = row[1:-1], length - 2
    return [_framed(row, text[start : start + size]) for start in range(0, len(text) - size + 1, size)]


def pieces(row: Ids, longest: int, padding: int) -> Ids:
    """A row's text in rows of at most `longest` tokens, as few as hold all of it and of like length, padded."""
    text = row[1:-1]
    parts = np.array_split(text, -(-len(text) // (longest - 2)))
    framed = np.full((len(parts), len(parts[0]) + 2), padding, dtype=np.int64)
    for line, part in zip(framed, parts, strict=True):
        line[: len(part) + 2] = _framed(row, part)
    return framed


def _framed(row: Ids, text: Ids) -> Ids:
    return np.concatenate([row[:1], text, row[-1:]])


@dataclass(frozen=True)
class MaskedRows:
    """Rows to read: what was masked in them, as indices into all their tokens, and what stood there.

    `original` has the rows as they were.
    """

    input_ids: Ids
    positions: Ids
    targets: Ids
    original: Ids


def mask(rows: Sequence[Ids], vocabulary: Vocabulary, seeds: Sequence[Sequence[int]]) -> MaskedRows:
    """Mask 15 % of the tokens of every row, drawn with a seed for each: 80 % become the mask, 10 % any token."""
    original = np.stack(rows)
    masked = original.copy()
    positions = []
    for index, row in enumerate(original):
        generator = np.random.default_rng(seeds[index])
        may_be = np.flatnonzero((row != vocabulary.sep_token_id) & (row != vocabulary.cls_token_id))
        chosen = generator.permutation(may_be)[: max(1, round(MASKED * (len(row) - 2)))]
        fate = generator.random(len(chosen))
        by_mask, at_random = fate < REPLACED_BY_MASK, fate >= 1 - REPLACED_AT_RANDOM
        masked[index, chosen[by_mask]] = vocabulary.mask_token_id
        masked[index, chosen[at_random]] = generator.integers(len(vocabulary), size=int(at_random.sum()))
        positions.append(chosen + index * original.shape[1])
    flat = np.concatenate(positions)
    return MaskedRows(masked, flat, original.reshape(-1)[flat], original)

"""The text that an encoder is trained on: documents as stored tokens, packed into rows of full length and masked.

What a step reads depends only on the seed, the step and the row: not on the number of devices, on how many rows one
computes at once, or on whether training was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.cache import RaggedArray
from prefixprop.data.rows import Row, read_rows, text_of
from prefixprop.data.tokens import stored_tokens
from prefixprop.lengthen.settings import LengthenSettings

_HELD_OUT_SHARE, _MOST_HELD_OUT = 0.02, 64
MASKED = 0.15
REPLACED_BY_MASK, REPLACED_AT_RANDOM = 0.8, 0.1  # of those masked; the rest stay as they are

Ids = NDArray[np.int64]


class PackedRows:
    """Documents one after the other, a separator behind each, cut into rows of `length` tokens.

    A row is `[CLS] text [SEP]`. It begins wherever the row before it ended, and may hold the end of one document and
    the beginning of the next.
    """

    def __init__(self, documents: RaggedArray, chosen: NDArray[np.int64], length: int, tokenizer: Any) -> None:
        self.documents, self.chosen, self.tokenizer = documents, chosen, tokenizer
        self.length = length
        lengths = documents.lengths[chosen] + 1  # with the separator
        self.starts = np.concatenate([[0], np.cumsum(lengths)])  # of documents, in the row of all of them
        self._pass: tuple[tuple[int, int], NDArray[np.int64], int] | None = None

    def count(self, shift: int = 0) -> int:
        """How many full rows there are from token `shift` on."""
        return max(0, int(self.starts[-1] - shift) // (self.length - 2))

    def row(self, number: int, shift: int = 0) -> Ids:
        start = shift + number * (self.length - 2)
        stop = start + self.length - 2
        row = np.full(self.length, self.tokenizer.sep_token_id, dtype=np.int64)
        row[0] = self.tokenizer.cls_token_id
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


def cut(row: Ids, length: int) -> Ids:
    """A row's text in rows of `length` tokens of their own; what does not fill one is left out."""
    text, size = row[1:-1], length - 2
    count = len(text) // size
    return _framed(row, text[: count * size].reshape(count, size))


def pieces(row: Ids, longest: int) -> Ids:
    """A row's text in rows of at most `longest` tokens, as few as hold all of it.

    They have the same length, so that none is padded; neighbours share a few tokens where that does not come out.
    """
    text = row[1:-1]
    count = -(-len(text) // (longest - 2))
    size = -(-len(text) // count)
    starts = [number * (len(text) - size) // max(1, count - 1) for number in range(count)]
    return _framed(row, np.stack([text[start : start + size] for start in starts]))


def _framed(row: Ids, texts: Ids) -> Ids:
    """Texts between the first and the last token of `row`."""
    first, last = (np.full((len(texts), 1), token) for token in (row[0], row[-1]))
    return np.concatenate([first, texts, last], axis=1)


def mask(blocks: Sequence[Ids], tokenizer: Any, seeds: Sequence[Sequence[int]]) -> dict[str, Ids]:
    """Mask 15 % of the tokens of every row: 80 % of them become the mask, 10 % any token.

    A block is rows of one length, [rows, length]. What is masked in it is drawn with its seed. Returns the rows
    (`input_ids`), the `positions` of the masked tokens, as indices into all rows, and what stood there (`targets`).
    """
    original = np.concatenate(blocks)
    count = max(1, round(MASKED * (original.shape[1] - 2)))
    may_be = (original != tokenizer.sep_token_id) & (original != tokenizer.cls_token_id)
    chosen: list[Ids] = []
    replacements: list[Ids] = []
    first = 0
    for block, seed in zip(blocks, seeds, strict=True):
        generator = np.random.default_rng(seed)
        order = np.where(may_be[first : first + len(block)], generator.random(block.shape), 2.0)
        first += len(block)
        places = np.argpartition(order, count, axis=1)[:, :count]
        fate = generator.random(places.shape)
        anything = generator.integers(len(tokenizer), size=places.shape)
        replaced = np.where(fate < REPLACED_BY_MASK, tokenizer.mask_token_id, np.take_along_axis(block, places, 1))
        chosen.append(places)
        replacements.append(np.where(fate >= 1 - REPLACED_AT_RANDOM, anything, replaced))
    positions = (np.concatenate(chosen) + np.arange(len(original))[:, None] * original.shape[1]).reshape(-1)
    input_ids = original.copy()
    input_ids.reshape(-1)[positions] = np.concatenate(replacements).reshape(-1)
    return {"input_ids": input_ids, "positions": positions, "targets": original.reshape(-1)[positions]}


@dataclass(frozen=True)
class TrainingText:
    """Rows to train on and rows that are held out, the latter at full length and at the original's."""

    train: PackedRows
    held_out: PackedRows
    held_out_short: PackedRows
    documents: int  # how many documents there are, the held-out ones counted
    tokens: int  # how many tokens they have, the held-out ones not counted
    note: str | None  # why the tokens are in memory and not on the disk, if they are
    digest: str  # identifies the files by what they hold

    def count_tokens(self, vocabulary: int) -> NDArray[np.int64]:
        """How often each token occurs in what is trained on."""
        counts = np.zeros(vocabulary, dtype=np.int64)
        for index in self.train.chosen:
            counts += np.bincount(self.train.documents[int(index)], minlength=vocabulary)
        return counts


def read_text(settings: LengthenSettings, tokenizer: Any, original_length: int) -> TrainingText:
    """Encode the documents of all files, unless they have been, and hold some out, drawn with the seed."""
    rows = read_rows(settings.text)
    column = settings.text_column
    digest = rows.digest()
    lists = stored_tokens(_Texts(rows, column), tokenizer, f"lengthen/{column}/{digest}")
    if len(lists) < 2:
        raise ValueError(
            f"{settings.text[0]}: there is only one document, and training needs at least two, because some are held "
            "out to evaluate on. Divide it."
        )
    held_out = max(1, min(_MOST_HELD_OUT, round(_HELD_OUT_SHARE * len(lists))))
    order = np.random.default_rng(settings.seed).permutation(len(lists))
    chosen, rest = np.sort(order[:held_out]), np.sort(order[held_out:])
    length = settings.max_length
    text = TrainingText(
        train=PackedRows(lists, rest, length, tokenizer),
        held_out=PackedRows(lists, chosen, length, tokenizer),
        held_out_short=PackedRows(lists, chosen, min(original_length, length), tokenizer),
        documents=len(lists),
        tokens=int(lists.lengths[rest].sum()),
        note=lists.note,
        digest=digest,
    )
    if not text.train.rows_per_pass or not text.held_out_short.count():
        raise ValueError(
            f"{settings.text[0]}: {text.documents:,} documents with {text.tokens:,} tokens do not fill a row of "
            f"{length}; give more text."
        )
    return text


class _Texts(Iterable[str]):
    """The texts of all rows that have one, read anew in every iteration."""

    def __init__(self, rows: Iterable[Row], column: str) -> None:
        self.rows, self.column = rows, column

    def __iter__(self) -> Iterator[str]:
        for row in self.rows:
            text = text_of(row, self.column)
            if text.strip():
                yield text

"""The text that an encoder is trained on: documents as stored tokens, some of them held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.encoding import stored_tokens
from prefixprop.data.rows import Row, read_rows, text_of
from prefixprop.lengthen.packing import PackedRows
from prefixprop.lengthen.settings import LengthenSettings

_HELD_OUT_SHARE, _MOST_HELD_OUT = 0.02, 64


@dataclass(frozen=True)
class TrainingText:
    """Rows to train on and rows that are held out, the latter at full length and at the original's.

    Attributes:
        documents: How many documents there are, the held-out ones counted.
        tokens: How many tokens they have, the held-out ones not counted.
        note: Why the tokens are in memory and not on the disk, if they are.
        digest: Identifies the files by what they hold.
    """

    train: PackedRows
    held_out: PackedRows
    held_out_short: PackedRows
    documents: int
    tokens: int
    note: str | None
    digest: str

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
            f"{settings.text[0]}: there is one document only, and training needs at least two: some are held out to "
            "measure what is learnt. Divide it."
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
    """The texts of all rows that have one, read anew whenever they are walked."""

    def __init__(self, rows: Iterable[Row], column: str) -> None:
        self.rows, self.column = rows, column

    def __iter__(self) -> Iterator[str]:
        for row in self.rows:
            text = text_of(row, self.column)
            if text.strip():
                yield text

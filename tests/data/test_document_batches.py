"""Padded batches of documents."""

from __future__ import annotations

import numpy as np
import pytest

from prefixprop.data import DocumentCollator, pad_documents

ROWS = [np.array(ids, dtype=np.int32) for ids in ([5, 6, 7], [8], [9, 9])]


@pytest.mark.parametrize(
    ("side", "ids", "mask"),
    [
        ("right", [[5, 6, 7], [8, 1, 1], [9, 9, 1]], [[1, 1, 1], [1, 0, 0], [1, 1, 0]]),
        ("left", [[5, 6, 7], [1, 1, 8], [1, 9, 9]], [[1, 1, 1], [0, 0, 1], [0, 1, 1]]),
    ],
)
def test_pads_to_the_longest(side: str, ids: list[list[int]], mask: list[list[int]]) -> None:
    padded = pad_documents(ROWS, pad_token_id=1, padding_side=side)
    assert padded["input_ids"].tolist() == ids and padded["attention_mask"].tolist() == mask


def test_no_mask_where_nothing_is_padding() -> None:
    assert pad_documents(ROWS[:1], 1).keys() == pad_documents([ROWS[2]] * 2, 1).keys() == {"input_ids"}
    assert pad_documents(ROWS[:1], 1, length=4)["attention_mask"].tolist() == [[1, 1, 1, 0]]


def test_collator_adds_labels() -> None:
    items = [{"input_ids": row, "labels": label} for row, label in zip(ROWS, (2, 0, 1), strict=True)]
    batch = DocumentCollator(1)(items)
    assert batch["labels"].tolist() == [2, 0, 1]
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 3)

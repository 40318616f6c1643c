"""Rows of full length, and what is masked in them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefixprop.data.cache import RaggedArray
from prefixprop.lengthen.text import PackedRows, cut, mask, pieces
from tiny_pretraining import masking_tokenizer

TOKENIZER = masking_tokenizer()
CLS, SEP, MASK = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id, TOKENIZER.mask_token_id
DOCUMENTS = st.lists(st.lists(st.integers(4, 90), max_size=30), min_size=1, max_size=8)


def packed(documents: list[list[int]], length: int) -> PackedRows:
    tokens = np.array([token for document in documents for token in document], dtype=np.uint16)
    offsets = np.cumsum([0, *map(len, documents)])
    return PackedRows(RaggedArray(tokens, offsets), np.arange(len(documents)), length, TOKENIZER)


@given(DOCUMENTS, st.integers(4, 20), st.integers(0, 10))
def test_rows_are_the_documents_one_after_the_other(documents: list[list[int]], length: int, shift: int) -> None:
    rows = packed(documents, length)
    stream = [token for document in documents for token in [*document, SEP]][shift:]
    size = length - 2
    expected = [[CLS, *stream[start : start + size], SEP] for start in range(0, len(stream) - size + 1, size)]
    assert [rows.row(number, shift).tolist() for number in range(rows.count(shift))] == expected


def test_a_pass_reads_every_row_once_and_the_next_one_in_another_order_and_cut_elsewhere() -> None:
    rows = packed([list(range(4, 94))] * 5, 12)
    passes = [
        [tuple(rows.drawn(number * rows.rows_per_pass + index, seed=1)) for index in range(rows.rows_per_pass)]
        for number in range(2)
    ]
    shifts = []
    for drawn in passes:
        cuts = {
            shift: sorted(tuple(rows.row(index, shift)) for index in range(rows.rows_per_pass)) for shift in range(10)
        }
        shifts += [shift for shift, whole in cuts.items() if whole == sorted(drawn)]
    assert len(shifts) == 2 and shifts[0] != shifts[1]
    in_order = [tuple(rows.row(index, shifts[0])) for index in range(rows.rows_per_pass)]
    assert passes[0] != in_order
    assert [tuple(rows.drawn(3, seed=1))] == passes[0][3:4], "the same row again, whatever was drawn between"
    assert tuple(rows.drawn(3, seed=2)) != passes[0][3]


@given(st.integers(3, 200), st.integers(4, 40))
def test_pieces_hold_all_of_the_text_and_no_padding(length: int, longest: int) -> None:
    row = np.array([CLS, *range(10, 8 + length), SEP])
    parts = pieces(row, longest)
    assert parts.shape[1] <= longest
    assert len(parts) == -(-(length - 2) // (longest - 2))
    assert set(parts[:, 1:-1].reshape(-1).tolist()) == set(row[1:-1].tolist())
    assert set(parts[:, 0]) == {CLS} and set(parts[:, -1]) == {SEP}
    size = longest - 2
    cuts = [[CLS, *range(a, a + size), SEP] for a in range(10, 9 + length - size, size)]
    assert cut(row, longest).tolist() == cuts


@given(st.integers(0, 1000))
def test_fifteen_percent_are_masked_most_of_them_by_the_mask(seed: int) -> None:
    blocks = [
        np.array([[CLS, *np.random.default_rng(number).integers(4, 90, 998), SEP, SEP] for _ in range(2)])
        for number in range(2)
    ]
    original = np.concatenate(blocks).reshape(-1)
    masked = mask(blocks, TOKENIZER, [[seed, number] for number in range(2)])
    flat, positions, targets = masked["input_ids"].reshape(-1), masked["positions"], masked["targets"]
    assert len(positions) == 600 == len(set(positions.tolist()))
    assert np.bincount(positions // 1001).tolist() == [150] * 4
    np.testing.assert_array_equal(targets, original[positions])
    assert set(np.flatnonzero(flat != original)) <= set(positions.tolist())
    became = flat[positions]
    assert 0.7 < (became == MASK).mean() < 0.9
    assert 0.04 < (became == targets).mean() < 0.2
    assert CLS not in targets and SEP not in targets


def test_masks_depend_on_their_seed_alone() -> None:
    blocks = [np.array([[CLS, *range(4, 80), SEP]])] * 2
    both = mask(blocks, TOKENIZER, [[1, 0], [1, 1]])["input_ids"]
    alone = mask(blocks[1:], TOKENIZER, [[1, 1]])["input_ids"]
    np.testing.assert_array_equal(both[1], alone[0])
    assert (both[0] != both[1]).any()

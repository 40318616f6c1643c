"""Padded batches of documents, and of questions: every chunk a row, nothing lost, either side padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixprop.data import CandidateCollator, DocumentCollator, Question, WikiHopDataset, pad_documents
from prefixprop.data.tokens import batches_by_length

from tiny_questions import ENTITY, questions, tiny_tokenizer

ROWS = [np.array(ids, dtype=np.int32) for ids in ([5, 6, 7], [8], [9, 9])]


@given(lengths=st.lists(st.integers(1, 50)), budget=st.integers(1, 200))
def test_batches_hold_every_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(batches_by_length(lengths, budget))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget
    ordered = [lengths[index] for batch in batches for index in batch]
    assert ordered == sorted(lengths, reverse=True)


NOTHING = np.zeros(0, dtype=np.int32)


@pytest.mark.parametrize(
    ("rows", "length", "ids", "mask"),
    [
        (ROWS, None, [[5, 6, 7], [8, 1, 1], [9, 9, 1]], [[1, 1, 1], [1, 0, 0], [1, 1, 0]]),
        (ROWS[:1], 4, [[5, 6, 7, 1]], [[1, 1, 1, 0]]),
        (ROWS[:1], None, [[5, 6, 7]], None),  # without padding, no mask
        ([ROWS[2]] * 2, None, [[9, 9]] * 2, None),
        ([NOTHING] * 2, None, [[1]] * 2, None),  # one padding token
        ([NOTHING, ROWS[2]], None, [[1, 1], [9, 9]], [[1, 0], [1, 1]]),
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_documents(rows: list[Any], length: int | None, ids: list[Any], mask: list[Any] | None, side: str) -> None:
    padded = {name: tensor.tolist() for name, tensor in pad_documents(rows, 1, side, length).items()}
    expected = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
    if side == "left":  # the padding is behind the tokens in the table
        ids, mask = (
            [sorted(row, key=lambda one: one != pad) for row in table] for table, pad in ((ids, 1), (mask or [], 0))
        )
        expected = {name: {"input_ids": ids, "attention_mask": mask}[name] for name in expected}
    assert padded == expected
    items = [{"input_ids": row, "labels": label} for label, row in enumerate(rows)]
    batch = DocumentCollator(1, side, lambda longest: length or longest)(items)
    assert batch.pop("labels").tolist() == list(range(len(rows)))
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected


TOKENIZER = tiny_tokenizer()


@settings(max_examples=25)
@given(
    asked=st.lists(questions(), min_size=1, max_size=4),
    max_length=st.integers(100, 160),
    side=st.sampled_from(["right", "left"]),
)
def test_a_batch_holds_every_chunk(asked: list[Question], max_length: int, side: str) -> None:
    dataset = WikiHopDataset(asked, TOKENIZER, max_length)
    items = [dataset[index] for index in range(len(asked))]
    batch = CandidateCollator(1, side)(items)
    rows = [(index, item, chunk) for index, item in enumerate(items) for chunk in item.chunks]
    assert batch["question_of_chunk"].tolist() == [index for index, _, _ in rows]
    assert batch["labels"].tolist() == [question.answer for question in asked]
    candidates = [len(question.candidates) for question in asked]
    assert batch["candidate_mask"].sum(dim=1).tolist() == candidates
    assert batch["candidate_mask"].shape == (len(asked), max(candidates))
    for row, (index, item, chunk) in enumerate(rows):
        real = batch["attention_mask"][row].bool()
        part, tokens = len(item.candidate_part), len(item.candidate_part) + len(chunk)
        assert batch["input_ids"][row][real].tolist() == [*item.candidate_part, *chunk]
        assert batch["input_ids"][row][~real].eq(1).all()
        assert real[:tokens].all() if side == "right" else real[-tokens:].all()
        assert batch["global_attention_mask"][row][real].tolist() == [1] * part + [0] * len(chunk)
        assert not batch["global_attention_mask"][row][~real].any()
        positions = batch["candidate_positions"][row, : candidates[index]]
        assert (
            batch["input_ids"][row][positions].eq(ENTITY).all() and len(set(positions.tolist())) == candidates[index]
        )
    assert batch["candidate_positions"].max() < batch["input_ids"].shape[1]
    assert batch["attention_mask"].sum(dim=1).max() == batch["input_ids"].shape[1]


def test_the_first_tensor_tells_how_many_questions_there_are() -> None:
    dataset = WikiHopDataset([Question("q", "w9", ("w4",), ("w5 " * 300,), 0)] * 2, TOKENIZER, 60)
    batch = CandidateCollator(1)([dataset[0], dataset[1]])
    assert len(next(iter(batch.values()))) == 2 < len(batch["input_ids"])
    assert batch["labels"].dtype == batch["input_ids"].dtype == torch.int64

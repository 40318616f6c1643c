"""Padded batches of documents, and of questions: every chunk a row, nothing lost, either side padded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixprop.data import CandidateCollator, DocumentCollator, Question, WikiHopDataset, pad_documents

from tiny_questions import ENTITY, questions, tiny_tokenizer

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


@pytest.mark.parametrize("side", ["right", "left"])
def test_documents_without_tokens_are_one_padding_token(side: str) -> None:
    nothing = np.zeros(0, dtype=np.int32)
    assert {name: ids.tolist() for name, ids in pad_documents([nothing] * 2, 1, side).items()} == {
        "input_ids": [[1], [1]]
    }
    mask = pad_documents([nothing, ROWS[2]], 1, side)["attention_mask"]
    assert mask.tolist() == [[1, 0] if side == "right" else [0, 1], [1, 1]]
    collated = DocumentCollator(1, side)([{"input_ids": nothing, "labels": 0}])
    assert collated["input_ids"].tolist() == [[1]]


def test_collator_adds_labels() -> None:
    items = [{"input_ids": row, "labels": label} for row, label in zip(ROWS, (2, 0, 1), strict=True)]
    batch = DocumentCollator(1)(items)
    assert batch["labels"].tolist() == [2, 0, 1]
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 3)


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


def test_unknown_side() -> None:
    with pytest.raises(ValueError, match="padding_side='both' is unknown; choose right or left"):
        CandidateCollator(1, "both")

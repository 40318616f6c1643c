"""Batches of questions: every chunk a row, nothing lost, either side padded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixprop.data import CandidateCollator, Question, WikiHopDataset

from tiny_questions import ENTITY, questions, tiny_tokenizer

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

"""The input of candidate scoring: order of the tokens, chunks, shuffling."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixprop.data import CandidatePartTooLong, Question, add_special_tokens
from prefixprop.data.wikihop_input import (
    MIN_SUPPORT_TOKENS,
    QuestionInput,
    check_room,
    shuffled,
    split_into_chunks,
    tokenize_question,
)
from prefixprop.models import load_default

from tiny_questions import END_ENTITY, END_QUESTION, ENTITY, FIRST_SPECIAL_TOKEN, QUESTION, questions, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def encode(question: Question, max_length: int, max_chunks: int | None = None) -> QuestionInput:
    return split_into_chunks(tokenize_question(question, TOKENIZER), max_length, max_chunks)


def ids(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def test_the_input_as_the_paper_writes_it() -> None:
    encoded = encode(Question("q", "w10 w11", ("w20", "w21 w22"), ("w30 w31", "w32"), 1), 100)
    part = [0, QUESTION, 10, 11, END_QUESTION, ENTITY, 20, END_ENTITY, ENTITY, 21, 22, END_ENTITY]
    assert encoded.candidate_part.tolist() == part
    assert encoded.candidate_positions.tolist() == [5, 8]
    assert [chunk.tolist() for chunk in encoded.chunks] == [[2, 30, 31, 2, 2, 32, 2]]
    assert (encoded.id, encoded.answer) == ("q", 1)


@given(question=questions(), room=st.integers(MIN_SUPPORT_TOKENS, 200))
def test_every_support_token_is_in_one_chunk_in_order(question: Question, room: int) -> None:
    tokenized = tokenize_question(question, TOKENIZER)
    max_length = tokenized.candidate_part_length + room
    encoded = split_into_chunks(tokenized, max_length)
    expected = [token for text in question.supports for token in (2, *ids(text), 2)]
    assert np.concatenate(encoded.chunks).tolist() == expected
    assert all(len(encoded.candidate_part) + len(chunk) <= max_length for chunk in encoded.chunks)
    assert all(len(chunk) == room for chunk in encoded.chunks[:-1]) and (len(encoded.chunks) == 1 or expected)
    starts = encoded.candidate_positions.tolist()
    assert [start for start, token in enumerate(encoded.candidate_part) if token == ENTITY] == starts
    for start, text in zip(starts, question.candidates, strict=True):
        words = encoded.candidate_part[start + 1 :].tolist()
        assert words[: words.index(END_ENTITY)] == ids(text)


@given(question=questions(), seed=st.integers())
def test_shuffling_keeps_the_answer(question: Question, seed: int) -> None:
    tokenized = tokenize_question(question, TOKENIZER)
    other = shuffled(tokenized, Random(seed))
    assert other.candidates[other.answer] is tokenized.candidates[tokenized.answer]
    for before, after in ((tokenized.candidates, other.candidates), (tokenized.supports, other.supports)):
        assert Counter(map(bytes, before)) == Counter(map(bytes, after))
    assert other.query is tokenized.query


def test_max_chunks_keeps_the_first_ones() -> None:
    question = Question("q", "w10", ("w20",), (" ".join(["w30"] * 200),), 0)
    every = encode(question, 60).chunks
    assert len(every) == 4
    assert [chunk.tolist() for chunk in encode(question, 60, max_chunks=2).chunks] == [
        chunk.tolist() for chunk in every[:2]
    ]


def test_no_room_behind_the_candidates() -> None:
    question = Question("WH_7", "w10", ("w20", "w21"), (" ".join(["w30"] * 200),), 0)
    part = 10
    assert len(encode(question, part + MIN_SUPPORT_TOKENS).chunks) == 7
    with pytest.raises(CandidatePartTooLong) as raised:
        encode(question, part + MIN_SUPPORT_TOKENS - 1)
    assert str(raised.value).startswith(
        "Question 'WH_7': its query and 2 candidates take 10 of 41 tokens, which leaves less than 32 for the supports"
    )


def test_short_supports_need_no_more_room_than_they_take() -> None:
    question = tokenize_question(Question("q", "w10", ("w20",), ("w30 w31",), 0), TOKENIZER)
    check_room(question, question.candidate_part_length + 4)
    with pytest.raises(CandidatePartTooLong):
        check_room(question, question.candidate_part_length + 3)
    nothing = tokenize_question(Question("q", "w10", ("w20",), (), 0), TOKENIZER)
    (chunk,) = split_into_chunks(nothing, nothing.candidate_part_length).chunks
    assert len(chunk) == 0


def test_the_real_tokenizer_and_the_punctuation_of_qangaroo() -> None:
    _, tokenizer = load_default()
    first = add_special_tokens(tokenizer)
    assert (first, len(tokenizer)) == (50265, 50269)
    assert add_special_tokens(tokenizer) == first and len(tokenizer) == 50269
    question = Question(
        "q", "record_label  method man ", ("def jam",), ("Method Man ( born 1971 ) 's band , it is .",), 0
    )
    tokenized = tokenize_question(question, tokenizer)
    assert tokenizer.decode(tokenized.query) == "<s>[question]record_label method man[/question]"
    assert tokenizer.decode(tokenized.candidates[0]) == "[ent]def jam[/ent]"
    assert tokenizer.decode(tokenized.supports[0]) == "</s>Method Man (born 1971)'s band, it is.</s>"


def test_a_marker_inside_a_text_scores_no_candidate() -> None:
    encoded = encode(Question("q", "w10", ("w20 [ent] w21", "w22"), ("[ent]",), 1), 100)
    assert encoded.candidate_positions.tolist() == [4, 9]
    assert encoded.candidate_part[[4, 9]].tolist() == [ENTITY, ENTITY]


def test_tokenizers_that_cannot_be_used() -> None:
    plain = tiny_tokenizer(special_tokens=False)
    with pytest.raises(ValueError, match=r"does not know \[question\], \[/question\], \[ent\], \[/ent\]; call add_"):
        tokenize_question(Question("q", "w10", ("w20",), (), 0), plain)
    plain.add_tokens(["[/ent]"])
    with pytest.raises(ValueError, match="must be consecutive"):
        add_special_tokens(plain)
    without_separator = tiny_tokenizer(special_tokens=False)
    without_separator.sep_token = None
    with pytest.raises(ValueError, match="The tokenizer has no sep_token"):
        add_special_tokens(without_separator)
    assert add_special_tokens(tiny_tokenizer(special_tokens=False)) == FIRST_SPECIAL_TOKEN

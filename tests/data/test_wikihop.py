"""WikiHop: reading QAngaroo's files, the order of the tokens, chunks, shuffling, counted skips, batches."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixprop.data import CandidateCollator, Question, WikiHopDataset, add_special_tokens, read_questions
from prefixprop.data.wikihop import (
    MIN_SUPPORT_TOKENS,
    QuestionInput,
    has_room,
    load_wikihop,
    shuffled,
    split_into_chunks,
    tokenize_question,
)
from prefixprop.models import load_default

from tiny_questions import (
    END_ENTITY,
    END_QUESTION,
    ENTITY,
    FIRST_SPECIAL_TOKEN,
    QUESTION,
    invented,
    questions,
    tiny_tokenizer,
)

TOKENIZER = tiny_tokenizer()
QUESTIONS = invented(8)


def record(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A question as QAngaroo writes it; a field changed to None is left out."""
    values = {
        "id": f"WH_train_{number}",
        "query": "country_of_citizenship anna example",
        "candidates": ["austria", "chile", "norway"],
        "supports": ["Anna Example is a skier from Oslo .", "Oslo is the capital of Norway ."],
        "answer": "norway",
        **changes,
    }
    return {name: value for name, value in values.items() if value is not None}


def write(path: Path, records: list[Any]) -> Path:
    lines = "\n".join(json.dumps(item) for item in records)
    text = lines if ".jsonl" in path.name else json.dumps(records, indent=1)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def ids_of(questions: tuple[Question, ...]) -> list[str]:
    return [question.id for question in questions]


@pytest.mark.parametrize("ending", [".json", ".jsonl.gz"])
def test_every_form_reads_the_same(ending: str, tmp_path: Path) -> None:
    first, second = read_questions(write(tmp_path / f"dev{ending}", [record(3, annotations=[["a"]]), record(4)]))
    supports = ("Anna Example is a skier from Oslo .", "Oslo is the capital of Norway .")
    query, candidates = "country_of_citizenship anna example", ("austria", "chile", "norway")
    assert first == Question("WH_train_3", query, candidates, supports, answer=2) and second.id == "WH_train_4"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(query=None), "there is no column 'query'; the columns are id, candidates, supports, answer."),
        (record(answer="peru"), "the answer 'peru' is not among the candidates ['austria', 'chile', 'norway']"),
        (record(candidates=[]), "the answer 'norway' is not among the candidates []"),
        (record(candidates="norway"), "the field 'candidates' must be a list of strings"),
        (record(supports=["text", 3]), "the field 'supports' must be a list of strings"),
        (record(query=7), "the column 'query' must hold text, got int"),
        (record(1), "the id 'WH_train_1' is also that of "),
    ],
)
def test_a_bad_record_is_named(bad: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", [record(1), bad])
    with pytest.raises(ValueError) as raised:
        read_questions(path)
    assert str(raised.value).startswith(f"{path}:2: {message}")


def test_without_a_test_file_dev_is_halved(tmp_path: Path) -> None:
    write(tmp_path / "train.json", [record(number) for number in range(3)])
    write(tmp_path / "dev.jsonl.gz", [record(number) for number in range(100, 121)])
    task = load_wikihop(tmp_path)
    assert (task.name, len(task.train), len(task.dev), len(task.test)) == ("wikihop", 3, 11, 10)
    published = [f"WH_train_{number}" for number in range(100, 121)]
    assert sorted(ids_of(task.dev + task.test)) == published and ids_of(task.dev) != published[:11]
    assert load_wikihop(tmp_path) == task
    write(tmp_path / "test.json", [record(7)])
    task = load_wikihop(tmp_path)
    assert ids_of(task.dev) == published and ids_of(task.split("test")) == ["WH_train_7"]


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
    marker = encode(Question("q", "w10", ("w20 [ent] w21", "w22"), ("[ent]",), 1), 100)  # in a text it scores nothing
    assert marker.candidate_positions.tolist() == [4, 9]


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


@pytest.mark.parametrize(("supports", "needed"), [(("w30 " * 200,), 32), (("w30 w31",), 4), ((), 0)])
def test_short_supports_need_no_more_room_than_they_take(supports: tuple[str, ...], needed: int) -> None:
    question = tokenize_question(Question("q", "w10", ("w20",), supports, 0), TOKENIZER)
    assert has_room(question, question.candidate_part_length + needed)
    assert not has_room(question, question.candidate_part_length + needed - 1)


def test_the_real_tokenizer_and_the_punctuation_of_qangaroo() -> None:
    _, tokenizer = load_default()
    assert add_special_tokens(tokenizer) == add_special_tokens(tokenizer) == 50265 and len(tokenizer) == 50269
    supports = ("Method Man ( born 1971 ) 's band , it is .",)
    tokenized = tokenize_question(Question("q", "record_label  method man ", ("def jam",), supports, 0), tokenizer)
    assert tokenizer.decode(tokenized.query) == "<s>[question]record_label method man[/question]"
    assert tokenizer.decode(tokenized.candidates[0]) == "[ent]def jam[/ent]"
    assert tokenizer.decode(tokenized.supports[0]) == "</s>Method Man (born 1971)'s band, it is.</s>"


def test_tokenizers_that_cannot_be_used() -> None:
    plain, without_separator = tiny_tokenizer(special_tokens=False), tiny_tokenizer(special_tokens=False)
    assert add_special_tokens(tiny_tokenizer(special_tokens=False)) == FIRST_SPECIAL_TOKEN
    plain.add_tokens(["[/ent]"])
    with pytest.raises(ValueError, match="must be consecutive"):
        add_special_tokens(plain)
    without_separator.sep_token = None
    with pytest.raises(ValueError, match="The tokenizer has no sep_token"):
        add_special_tokens(without_separator)


def order_of(dataset: WikiHopDataset) -> list[tuple[list[int], list[int], int]]:
    return [
        (item.candidate_part.tolist(), np.concatenate(item.chunks).tolist(), item.answer)
        for item in (dataset[index] for index in range(len(dataset)))
    ]


def candidate_words(item: QuestionInput) -> list[int]:
    """The words of the candidate that is the answer."""
    start = item.candidate_positions[item.answer]
    ends = [*item.candidate_positions[1:], len(item.candidate_part)]
    return item.candidate_part[start + 1 : ends[item.answer] - 1].tolist()


def test_training_shuffles_anew_in_every_epoch_and_reproducibly() -> None:
    plain = WikiHopDataset(QUESTIONS, TOKENIZER, 80)
    dataset, again = (WikiHopDataset(QUESTIONS, TOKENIZER, 80, shuffle=True, seed=5) for _ in range(2))
    orders = [order_of(plain)]
    for epoch in range(3):
        for each in (plain, dataset, again):
            each.set_epoch(epoch)
        orders.append(order_of(dataset))
        assert order_of(again) == orders[-1] and order_of(plain) == orders[0]
    orders.append(order_of(WikiHopDataset(QUESTIONS, TOKENIZER, 80, shuffle=True, seed=6)))
    assert all(one not in orders[:place] for place, one in enumerate(orders))
    assert [answer for _, _, answer in orders[0]] == [question.answer for question in QUESTIONS]
    for index, question in enumerate(QUESTIONS):
        assert candidate_words(dataset[index]) == ids(question.candidates[question.answer])
    part = WikiHopDataset(QUESTIONS[4:], TOKENIZER, 80, shuffle=True, seed=5)  # whatever stands around a question
    assert order_of(part) == orders[1][4:]


def test_questions_without_room_are_skipped() -> None:
    huge = Question("huge", "w10", ("w20 w21 w22 w23",) * 20, ("w30 " * 50,), 0)
    dataset = WikiHopDataset([QUESTIONS[0], huge, QUESTIONS[1]], TOKENIZER, 128)
    assert dataset.skipped == ("huge",) and ids_of(dataset.questions) == ["q0", "q1"]
    assert [dataset[index].id for index in range(len(dataset))] == ["q0", "q1"]
    with pytest.raises(ValueError, match="No question's candidates fit into max_length=128 tokens"):
        WikiHopDataset([huge], TOKENIZER, 128)


@pytest.mark.parametrize("max_chunks", [None, 1, 2])
def test_lengths_are_what_the_encoder_reads(max_chunks: int | None) -> None:
    dataset, whole = (WikiHopDataset(QUESTIONS, TOKENIZER, 80, max_chunks=count) for count in (max_chunks, None))
    items = [dataset[index] for index in range(len(dataset))]
    assert list(dataset.lengths) == [
        sum(len(item.candidate_part) + len(chunk) for chunk in item.chunks) for item in items
    ]
    cut = []
    for index, item in enumerate(items):
        every = [chunk.tolist() for chunk in whole[index].chunks]
        assert [chunk.tolist() for chunk in item.chunks] == every[:max_chunks]  # the first ones
        cut += [item.id] if len(every) > len(item.chunks) else []
    assert list(dataset.cut) == cut and bool(cut) == (max_chunks is not None)


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

"""WikiHop: reading QAngaroo's files, the order of the tokens, chunks, shuffling, counted skips."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from prefixprop.data import (
    CandidatePartTooLong,
    Question,
    QuestionInput,
    WikiHopDataset,
    add_special_tokens,
    load_wikihop,
    read_questions,
)
from prefixprop.data.wikihop import (
    MIN_SUPPORT_TOKENS,
    check_room,
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


def record(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A question as QAngaroo writes it."""
    return {
        "id": f"WH_train_{number}",
        "query": "country_of_citizenship anna example",
        "candidates": ["austria", "chile", "norway"],
        "supports": ["Anna Example is a skier from Oslo .", "Oslo is the capital of Norway ."],
        "answer": "norway",
        **changes,
    }


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in record().items() if key != name}


def as_lines(records: list[Any]) -> str:
    return "\n".join(json.dumps(item) for item in records)


def write(path: Path, records: list[Any]) -> Path:
    text = as_lines(records) if ".jsonl" in path.name else json.dumps(records, indent=1)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".json.gz", ".jsonl.gz"])
def test_every_form_reads_the_same(ending: str, tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path / f"dev{ending}", [record(3, annotations=[["follows"]]), record(4)]))
    assert [question.id for question in questions] == ["WH_train_3", "WH_train_4"]
    assert questions[0] == Question(
        id="WH_train_3",
        query="country_of_citizenship anna example",
        candidates=("austria", "chile", "norway"),
        supports=("Anna Example is a skier from Oslo .", "Oslo is the capital of Norway ."),
        answer=2,
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (without("query"), "the field 'query' is missing; there are: answer, candidates, id, supports"),
        (without("answer"), "the field 'answer' is missing"),
        (record(answer="peru"), "the answer 'peru' is not among the candidates ['austria', 'chile', 'norway']"),
        (record(candidates=[]), "the answer 'norway' is not among the candidates []"),
        (record(candidates="norway"), "the field 'candidates' must be a list of strings"),
        (record(supports=["text", 3]), "the field 'supports' must be a list of strings"),
        (record(id=7), "the field 'id' must be a string, got int"),
        (record(1), "the id 'WH_train_1' is already that of "),
        ("question", "expected a JSON object, got str"),
    ],
)
@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_a_bad_record_is_named(ending: str, bad: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"train{ending}", [record(1), bad])
    with pytest.raises(ValueError) as raised:
        read_questions(path)
    line = 2 if ending == ".jsonl" else json.dumps([record(1)], indent=1).count("\n") + 1
    assert str(raised.value).startswith(f"{path}:{line}: {message}")


def test_without_a_test_file_dev_is_halved(tmp_path: Path) -> None:
    write(tmp_path / "train.json", [record(number) for number in range(3)])
    write(tmp_path / "dev.jsonl.gz", [record(number) for number in range(100, 121)])
    task = load_wikihop(tmp_path)
    assert (task.name, len(task.train), len(task.dev), len(task.test)) == ("wikihop", 3, 11, 10)
    ids = {question.id for question in task.dev + task.test}
    assert ids == {f"WH_train_{number}" for number in range(100, 121)}
    assert [question.id for question in task.dev] != [f"WH_train_{number}" for number in range(100, 111)]
    assert load_wikihop(str(tmp_path)) == task


def test_a_test_file_is_the_test_split(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "dev", "test")):
        write(tmp_path / f"{split}.json", [record(number), record(number + 10)])
    task = load_wikihop(tmp_path)
    for number, split in enumerate(("train", "dev", "test")):
        assert [question.id for question in task.split(split)] == [f"WH_train_{number}", f"WH_train_{number + 10}"]
    with pytest.raises(ValueError, match="Unknown split 'validation'; choose one of train, dev, test"):
        task.split("validation")


def test_missing_and_ambiguous_files(tmp_path: Path) -> None:
    write(tmp_path / "train.json", [record()])
    with pytest.raises(FileNotFoundError, match=r"there is no dev\.json or dev\.jsonl here; download QAngaroo"):
        load_wikihop(tmp_path)
    write(tmp_path / "dev.json", [record()])
    write(tmp_path / "dev.jsonl", [record()])
    with pytest.raises(ValueError, match=r"several files could be dev: dev\.json, dev\.jsonl; keep one"):
        load_wikihop(tmp_path)


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


TOKENIZER = tiny_tokenizer()
QUESTIONS = invented(8)
HUGE = Question("huge", "w10", tuple(["w20 w21 w22 w23"] * 20), ("w30 " * 50,), 0)


def order_of(dataset: WikiHopDataset) -> list[tuple[list[int], list[int], int]]:
    return [
        (item.candidate_part.tolist(), [token for chunk in item.chunks for token in chunk.tolist()], item.answer)
        for item in (dataset[index] for index in range(len(dataset)))
    ]


def candidate_words(item: QuestionInput) -> list[int]:
    """The words of the candidate that is the answer."""
    start = item.candidate_positions[item.answer]
    ends = [*item.candidate_positions[1:], len(item.candidate_part)]
    return item.candidate_part[start + 1 : ends[item.answer] - 1].tolist()


def test_evaluation_keeps_the_order() -> None:
    dataset = WikiHopDataset(QUESTIONS, TOKENIZER, 80)
    before = order_of(dataset)
    dataset.set_epoch(3)
    assert order_of(dataset) == before
    assert [item[2] for item in before] == [question.answer for question in QUESTIONS]


def test_training_shuffles_anew_in_every_epoch_and_reproducibly() -> None:
    dataset = WikiHopDataset(QUESTIONS, TOKENIZER, 80, shuffle=True, seed=5)
    epochs = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        epochs.append(order_of(dataset))
    plain = order_of(WikiHopDataset(QUESTIONS, TOKENIZER, 80))
    assert all(one != two for index, one in enumerate(epochs) for two in (plain, *epochs[:index]))
    again = WikiHopDataset(QUESTIONS, TOKENIZER, 80, shuffle=True, seed=5)
    again.set_epoch(2)
    assert order_of(again) == epochs[2]
    other_seed = WikiHopDataset(QUESTIONS, TOKENIZER, 80, shuffle=True, seed=6)
    assert order_of(other_seed) != epochs[0]
    for index, question in enumerate(QUESTIONS):
        assert candidate_words(dataset[index]) == [
            int(word[1:]) for word in question.candidates[question.answer].split()
        ]


def test_a_question_is_shuffled_the_same_whatever_stands_around_it() -> None:
    whole = WikiHopDataset(QUESTIONS, TOKENIZER, 80, shuffle=True)
    part = WikiHopDataset(QUESTIONS[4:], TOKENIZER, 80, shuffle=True)
    assert order_of(whole)[4:] == order_of(part)


def test_workers_that_live_on_see_the_next_epoch() -> None:
    dataset = WikiHopDataset(QUESTIONS, TOKENIZER, 80, shuffle=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append([item.candidate_part.tolist() for item in loader])
        assert epochs[epoch] == [part for part, _, _ in order_of(dataset)]
    assert epochs[0] != epochs[1]


def test_oversized_questions_stop_or_are_counted() -> None:
    mixed = [QUESTIONS[0], HUGE, QUESTIONS[1]]
    with pytest.raises(CandidatePartTooLong, match="Question 'huge': its query and 20 candidates take 124 of 128"):
        WikiHopDataset(mixed, TOKENIZER, 128)
    dataset = WikiHopDataset(mixed, TOKENIZER, 128, oversized="skip")
    assert dataset.skipped == ("huge",)
    assert [question.id for question in dataset.questions] == ["q0", "q1"]
    assert [dataset[index].id for index in range(len(dataset))] == ["q0", "q1"]
    with pytest.raises(ValueError, match="No question's candidates fit into max_length=128 tokens"):
        WikiHopDataset([HUGE], TOKENIZER, 128, oversized="skip")
    with pytest.raises(ValueError, match="oversized='drop' is unknown; choose one of raise, skip"):
        WikiHopDataset(mixed, TOKENIZER, 128, oversized="drop")


@pytest.mark.parametrize("max_chunks", [None, 1, 2])
def test_lengths_are_what_the_encoder_reads(max_chunks: int | None) -> None:
    dataset = WikiHopDataset(QUESTIONS, TOKENIZER, 80, max_chunks=max_chunks)
    items = [dataset[index] for index in range(len(dataset))]
    counted = [sum(len(item.candidate_part) + len(chunk) for chunk in item.chunks) for item in items]
    assert list(dataset.lengths) == counted
    chunks = [len(dataset_item.chunks) for dataset_item in items]
    whole = WikiHopDataset(QUESTIONS, TOKENIZER, 80)
    cut = [whole[index].id for index in range(8) if len(whole[index].chunks) > chunks[index]]
    assert list(dataset.cut) == cut
    assert bool(cut) == (max_chunks is not None) and max(chunks) == (max_chunks or max(chunks))
    with pytest.raises(ValueError, match="max_chunks=0 must be at least 1"):
        WikiHopDataset(QUESTIONS, TOKENIZER, 80, max_chunks=0)

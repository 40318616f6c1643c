"""The data set that a DataLoader reads: reproducible shuffling, counted skips."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from prefixprop.data import CandidatePartTooLong, Question, QuestionInput, WikiHopDataset

from tiny_questions import invented, tiny_tokenizer

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

"""The order of training documents."""

from __future__ import annotations

import random

import pytest

from prefixprop.train.trainer import LengthGroupedOrder

_GENERATOR = random.Random(1)
LENGTHS = [_GENERATOR.randint(5, 4000) for _ in range(1001)]


def steps(order: LengthGroupedOrder) -> list[list[int]]:
    places = list(order)
    return [places[start : start + order.batch_size] for start in range(0, len(places), order.batch_size)]


def padded_tokens(batches: list[list[int]]) -> int:
    return sum(len(batch) * max(LENGTHS[place] for place in batch) for batch in batches)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 1001])
def test_every_document_once(count: int) -> None:
    order = LengthGroupedOrder(LENGTHS[:count], 8, seed=1)
    assert sorted(order) == list(range(count)) and len(order) == count


def test_depends_on_seed_and_epoch_alone() -> None:
    order = LengthGroupedOrder(LENGTHS, 8, seed=1)
    first = list(order)
    order.set_epoch(1)
    second = list(order)
    order.set_epoch(0)
    random.seed(5)
    assert list(order) == first != second
    assert list(LengthGroupedOrder(LENGTHS, 8, seed=2)) != first


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_steps_are_of_like_length_and_in_no_order(epoch: int) -> None:
    order = LengthGroupedOrder(LENGTHS, 32, seed=1)
    order.set_epoch(epoch)
    shuffled = random.Random(1).sample(range(len(LENGTHS)), len(LENGTHS))
    at_random = [shuffled[start : start + 32] for start in range(0, len(shuffled), 32)]
    assert padded_tokens(steps(order)) < 1.4 * sum(LENGTHS) < 0.75 * padded_tokens(at_random)
    longest = [max(LENGTHS[place] for place in step) for step in steps(order)]
    assert longest != sorted(longest, reverse=True)


def test_parts_of_a_step_are_of_like_length_too() -> None:
    order = LengthGroupedOrder(LENGTHS, 32, seed=1)
    parts = [step[start : start + 8] for step in steps(order) for start in range(0, len(step), 8)]
    assert padded_tokens(parts) < 1.1 * sum(LENGTHS)


def test_memory_that_is_too_small_is_found_at_the_first_step() -> None:
    order = LengthGroupedOrder(LENGTHS, 8, seed=1)
    assert LENGTHS[next(iter(order))] == max(LENGTHS)
    first = []
    for epoch in range(1, 9):
        order.set_epoch(epoch)
        first.append(LENGTHS[next(iter(order))])
    assert any(length < max(LENGTHS) for length in first)


@pytest.mark.parametrize("count", [64, 512])
def test_a_document_meets_others_in_every_epoch(count: int) -> None:
    """Also where all documents make only a few steps: sorted by length alone, those would always be the same."""
    order = LengthGroupedOrder(LENGTHS[:count], 32, seed=1)
    met: list[set[int]] = [set() for _ in range(count)]
    for epoch in range(10):
        order.set_epoch(epoch)
        for step in steps(order):
            for place in step:
                met[place].update(step)
    assert sum(map(len, met)) / count > 45


def test_only_the_last_step_is_short_and_of_any_documents() -> None:
    order = LengthGroupedOrder(LENGTHS, 8, seed=1)
    last = set()
    for epoch in range(5):
        order.set_epoch(epoch)
        sizes = [len(step) for step in steps(order)]
        assert sizes[-1] == 1 and set(sizes[:-1]) == {8}
        last.add(steps(order)[-1][0])
    assert len(last) > 1

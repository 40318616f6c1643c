"""The order of training documents."""

from __future__ import annotations

import random

import pytest

from prefixprop.training.batches import LengthGroupedOrder

_GENERATOR = random.Random(1)
LENGTHS = [_GENERATOR.randint(5, 4000) for _ in range(1001)]


def batches(order: LengthGroupedOrder) -> list[list[int]]:
    places = list(order)
    return [places[start : start + order.batch_size] for start in range(0, len(places), order.batch_size)]


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


def test_batches_are_of_like_length_and_in_no_order() -> None:
    order = LengthGroupedOrder(LENGTHS, 8, seed=1)
    padded = sum(len(batch) * max(LENGTHS[place] for place in batch) for batch in batches(order))
    assert padded < 1.05 * sum(LENGTHS)
    longest = [max(LENGTHS[place] for place in batch) for batch in batches(order)]
    assert longest[0] == max(LENGTHS), "memory that is too small is found at the first step"
    assert longest[1:] != sorted(longest[1:], reverse=True)


def test_only_the_last_batch_is_short() -> None:
    order = LengthGroupedOrder(LENGTHS, 8, seed=1)
    sizes = [len(batch) for batch in batches(order)]
    assert sizes[-1] == 1 and set(sizes[:-1]) == {8}

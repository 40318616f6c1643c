from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from prefixprop.data import Document, Split
from prefixprop.data.splits import split_off


def documents(labels: list[int]) -> Split:
    return tuple(Document(str(index), f"text {index}", label) for index, label in enumerate(labels))


def test_halves_are_those_of_scikit_learn_in_the_old_order() -> None:
    labels = [0] * 21 + [1] * 10 + [2] * 30
    first, second = train_test_split(range(61), test_size=0.5, stratify=labels, random_state=10)
    kept, split = split_off(documents(labels), fraction=0.5, seed=10)
    assert [int(document.id) for document in kept] == sorted(first)
    assert [int(document.id) for document in split] == sorted(second)


def test_the_seed_decides() -> None:
    labels = [0, 1] * 50
    assert split_off(documents(labels), 0.1, seed=1) == split_off(documents(labels), 0.1, seed=1)
    assert split_off(documents(labels), 0.1, seed=1) != split_off(documents(labels), 0.1, seed=2)


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=60), fraction=st.sampled_from([0.1, 0.5]))
def test_every_label_stays_in_what_is_kept(labels: list[int], fraction: float) -> None:
    counts = Counter(labels)
    if max(counts.values()) == 1:
        with pytest.raises(ValueError, match="no label has two of them"):
            split_off(documents(labels), fraction)
        return
    kept, split = split_off(documents(labels), fraction)
    assert sorted(kept + split, key=lambda document: int(document.id)) == list(documents(labels))
    assert {document.label for document in kept} == set(labels)
    several = [label for label in labels if counts[label] > 1]
    assert len(split) >= max(fraction * len(several), len(set(several)))
    assert all(counts[document.label] > 1 for document in split)

"""Splitting documents in two so that both parts have the labels in the same proportions, and drawing some of them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from prefixprop.tasks.documents import Split

Item = TypeVar("Item")

SPLIT_SEED = 10  # the seed with which the paper's authors halved the test of 20-newsgroups


def split_off(documents: Split, fraction: float, seed: int = SPLIT_SEED) -> tuple[Split, Split]:
    """Return what is kept and the `fraction` split off: stratified by label, each part in its old order.

    The choice is that of scikit-learn's `train_test_split`. At least one document per label is split off, unless
    the label has a single document, which is kept.
    """
    from sklearn.model_selection import train_test_split

    counts = Counter(document.label for document in documents)
    places = [place for place, document in enumerate(documents) if counts[document.label] > 1]
    if not places:
        raise ValueError(
            f"{len(documents)} documents cannot be split in two: no label has two of them. Give both parts as files."
        )
    labels = [documents[place].label for place in places]
    size = max(math.ceil(fraction * len(places)), len(set(labels)))
    _, chosen = train_test_split(places, test_size=size, stratify=labels, random_state=seed)
    split = set(chosen)
    kept = tuple(document for place, document in enumerate(documents) if place not in split)
    return kept, tuple(documents[place] for place in sorted(split))


def draw_sample(items: Sequence[Item], limit: int | None, seed: int) -> tuple[Item, ...]:
    """So many of the items, always the same ones for a seed, in their order."""
    if limit is None or limit >= len(items):
        return tuple(items)
    chosen = sorted(random.Random(seed).sample(range(len(items)), limit))
    return tuple(items[place] for place in chosen)

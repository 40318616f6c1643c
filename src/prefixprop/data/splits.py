"""Dividing documents: a part split off, a sample drawn, or folds for cross-validation.

Which documents make a fold depends on the train documents and `FOLD_SEED` alone, never on the seed of a run: all
methods, settings and seeds share their folds, so that means over folds can be compared.
"""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from prefixprop.data.documents import ClassificationTask, Split, StoredDocuments, labels_of
from prefixprop.data.wikihop import QuestionTask

if TYPE_CHECKING:
    from prefixprop.data.registry import Task

Item = TypeVar("Item")

SPLIT_SEED = 10  # the seed with which the paper's authors halved the test of 20-newsgroups


def split_off(documents: Split, fraction: float, seed: int = SPLIT_SEED) -> tuple[Split, Split]:
    """Return what remains and the `fraction` split off: stratified by label, each part in its old order.

    The choice is that of scikit-learn's `train_test_split`. At least one document per label is split off, unless
    the label has a single document, which remains.
    """
    from sklearn.model_selection import train_test_split

    all_labels = labels_of(documents)
    counts = Counter(all_labels)
    indices = [index for index, label in enumerate(all_labels) if counts[label] > 1]
    if not indices:
        raise ValueError(
            f"{len(documents)} documents cannot be split in two: no label has two of them. Give both parts as files."
        )
    labels = [all_labels[index] for index in indices]
    size = max(math.ceil(fraction * len(indices)), len(set(labels)))
    _, chosen = train_test_split(indices, test_size=size, stratify=labels, random_state=seed)
    return _divided(documents, set(chosen))


def draw_sample(items: Sequence[Item], limit: int | None, seed: int) -> Sequence[Item]:
    """At most `limit` items, always the same ones for a seed, in their order."""
    if limit is None or limit >= len(items):
        return items
    return select(items, sorted(random.Random(seed).sample(range(len(items)), limit)))


def select(items: Sequence[Item], indices: Sequence[int]) -> Sequence[Item]:
    """The items at these indices, in this order; documents on the disk are not read for it."""
    if isinstance(items, StoredDocuments):
        return items.select(indices)  # type: ignore[return-value]
    return tuple(items[index] for index in indices)


FOLD_SEED = 10


def leave_out_fold(task: Task, folds: int, fold: int) -> Task:
    """The task with fold number `fold`, from 0, moved from train to dev; both keep their order.

    The task's own dev and its test are dropped: nothing that is chosen by folds may have seen them. Documents are
    stratified by label, as by scikit-learn's `StratifiedKFold`; questions have no labels and are not stratified.
    """
    if len(task.train) < folds:
        raise ValueError(
            f"--folds: the {len(task.train)} train documents of task {task.name!r} cannot be divided in {folds} "
            "folds; choose fewer."
        )
    if isinstance(task, QuestionTask):
        questions, left_out = _divided(task.train, _indices_of_fold(len(task.train), None, folds, fold))
        return replace(task, train=tuple(questions), dev=tuple(left_out), test=())
    labels = labels_of(task.train)
    train, dev = _divided(task.train, _indices_of_fold(len(labels), labels, folds, fold))
    unused = f"; the {len(task.dev):,} dev documents are not used" if task.dev else ""
    remark = f"fold {fold} of {folds}, {len(dev):,} train documents, is left out of train and evaluated{unused}"
    return replace(task, train=train, dev=dev, test=(), remarks=(*task.remarks, remark, *_rare_labels(task, folds)))


def _indices_of_fold(count: int, labels: Sequence[int] | None, folds: int, fold: int) -> set[int]:
    from sklearn.model_selection import KFold, StratifiedKFold

    # scikit-learn refuses to stratify where every label is rarer than folds, and warns where some are.
    stratified = labels is not None and max(Counter(labels).values()) >= folds
    kind = StratifiedKFold if stratified else KFold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        parts = list(kind(folds, shuffle=True, random_state=FOLD_SEED).split([0] * count, labels))
    return set(parts[fold][1].tolist())


def _divided(items: Sequence[Item], left_out: set[int]) -> tuple[Sequence[Item], Sequence[Item]]:
    remaining = [index for index in range(len(items)) if index not in left_out]
    return select(items, remaining), select(items, sorted(left_out))


def _rare_labels(task: ClassificationTask, folds: int) -> Iterator[str]:
    counts = Counter(labels_of(task.train))
    rare = [task.label_names[label] for label, count in sorted(counts.items()) if count < folds]
    if len(rare) == len(counts):
        yield f"no label has {folds} train documents, so the {folds} folds are not stratified by label"
    elif rare:
        yield f"fewer than {folds} train documents have the label {', '.join(rare)}, so it is missing from some folds"

"""Dividing documents: a part split off, a sample, or folds for cross-validation.

Copies of a text are never on both sides of a split. Folds depend only on the training documents and `SPLIT_SEED`,
never on the seed of a run: all methods, settings and seeds share their folds, so that means over folds can be
compared.
"""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.documents import (
    SPLIT_NAMES,
    ClassificationTask,
    Label,
    StoredDocuments,
    as_set,
    first_copies,
    multi_hot,
)
from prefixprop.data.wikihop import Question, QuestionTask

if TYPE_CHECKING:
    from prefixprop.data.tasks import Task

Items = TypeVar("Items", bound=StoredDocuments | tuple[Question, ...])

SPLIT_SEED = 10  # the seed with which the paper's authors halved the test set of 20-newsgroups
DEV_FRACTION = 0.1


def split_off(documents: StoredDocuments, fraction: float) -> tuple[StoredDocuments, StoredDocuments]:
    """Return what remains and the `fraction` split off: stratified by label, each part in its old order.

    The choice is that of scikit-learn's `train_test_split` among different texts; copies follow the first of them. At
    least one text per label is split off. What remains has every label: a text stays if it is the only one of its
    label, or if its copies have different labels. Documents with several labels are stratified as folds are.
    """
    from sklearn.model_selection import train_test_split

    labels = documents.labels
    first = first_copies(documents)
    texts, sets = np.unique(first), _sets_of_texts(labels, first)
    several = bool(labels) and isinstance(labels[0], tuple)
    # A text whose copies have different labels, where there should be one, stays and does not count.
    counted = np.array([several or len(one) == 1 for one in sets], dtype=bool)
    counts = Counter(label for one, counts in zip(sets, counted, strict=True) if counts for label in one)
    may_go = counted & [all(counts[label] > 1 for label in one) for one in sets]
    if may_go.sum() < 2:
        raise ValueError(
            f"{len(documents)} documents cannot be split in two: no label has two different texts. Give both parts "
            "as files."
        )
    if several:
        numbers = _fold_of_each_set(sets, min(round(1 / fraction), len(sets)))
        chosen = texts[may_go & (numbers == numbers[may_go].min())]
    else:
        strata = [one[0] for one, goes in zip(sets, may_go, strict=True) if goes]
        size = max(math.ceil(fraction * len(strata)), len(set(strata)))
        _, chosen = train_test_split(texts[may_go], test_size=size, stratify=strata, random_state=SPLIT_SEED)
    return _divided(documents, np.isin(first, chosen))


def draw_sample(items: Items, limit: int | None, seed: int) -> Items:
    """At most `limit` items, always the same ones for a seed, in their order."""
    if limit is None or limit >= len(items):
        return items
    return select(items, sorted(random.Random(seed).sample(range(len(items)), limit)))


def select(items: Items, indices: Sequence[int]) -> Items:
    """The items at these indices, in this order; documents are not read."""
    if isinstance(items, StoredDocuments):
        return items.select(indices)  # type: ignore[return-value]
    return tuple(items[index] for index in indices)  # type: ignore[return-value]


def select_documents(
    task: Task,
    *,
    folds: int | None = None,
    fold: int | None = None,
    max_documents: Mapping[str, int | None] | None = None,
    seed: int = 0,
    needs_dev: bool = True,
    set_aside_from: int | None = None,
) -> Task:
    """The documents of a task that a run reads: at most so many of each split, and without the fold that is held out.

    With `folds`, the dev set is fold number `fold` of the training set, and the test set is empty. If there is no dev
    set and the run needs one, a part of the training set (`DEV_FRACTION`) becomes the dev set. Half of a dev set of
    `set_aside_from` documents or more is set aside for calibration.
    """
    if not task.train:
        raise ValueError(f"Task {task.name!r} has no training documents.")
    if folds is not None and fold is not None:
        task = leave_out_fold(task, folds, fold)
    elif not task.dev and needs_dev:
        task = _split_off_dev(task)
    limits = max_documents or {}
    samples: dict[str, Any] = {name: draw_sample(task.split(name), limits.get(name), seed) for name in SPLIT_NAMES}
    task = replace(task, **samples)
    if set_aside_from is not None and len(task.dev) >= set_aside_from and not isinstance(task, QuestionTask):
        return _set_aside(task)
    return task


def _set_aside(task: ClassificationTask) -> ClassificationTask:
    """Half of the dev set, drawn without regard to labels: runs for several label columns share their documents."""
    first = first_copies(task.dev)
    texts = np.random.default_rng(SPLIT_SEED).permutation(np.unique(first))
    dev, calibration = _divided(task.dev, np.isin(first, texts[: len(texts) // 2]))
    remark = f"{len(calibration):,} of {len(task.dev):,} dev documents are set aside to find which answers to accept"
    return replace(task, dev=dev, calibration=calibration, remarks=(*task.remarks, remark))


def _split_off_dev(task: Task) -> Task:
    if isinstance(task, QuestionTask):
        raise ValueError(f"Task {task.name!r} has no dev questions, which every run needs; give some.")
    train, dev = split_off(task.train, DEV_FRACTION)
    remark = (
        f"no dev documents were given: {len(dev):,} of {len(task.train):,} training documents, drawn with seed "
        f"{SPLIT_SEED} and stratified by label, are the dev set"
    )
    return replace(task, train=train, dev=dev, remarks=(*task.remarks, remark))


def leave_out_fold(task: Task, folds: int, fold: int) -> Task:
    """The task with fold number `fold`, from 0, of the training set as its dev set; both keep their order.

    The task's own dev and test set are dropped: nothing that is chosen by folds may have seen them. Documents are
    stratified by label, as by scikit-learn's `StratifiedKFold`; questions have no labels and are not stratified.
    """
    if isinstance(task, QuestionTask):
        questions, left_out = _divided(
            task.train, _fold_of_each(task.name, np.arange(len(task.train)), None, folds) == fold
        )
        return replace(task, train=questions, dev=left_out, test=())
    first, labels = first_copies(task.train), task.train.labels
    train, dev = _divided(task.train, _fold_of_each(task.name, first, labels, folds) == fold)
    unused = f"; the {len(task.dev):,} dev documents are not used" if task.dev else ""
    remarks = [f"fold {fold} of {folds}, {len(dev):,} training documents, is the dev set of this run{unused}"]
    of_texts = Counter(label for index in set(first.tolist()) for label in as_set(labels[index]))
    remarks += _rare_labels(task.label_names, of_texts, folds)
    return replace(task, train=train, dev=dev, test=task.test[:0], remarks=(*task.remarks, *remarks))


def fold_numbers(name: str, documents: StoredDocuments, folds: int) -> NDArray[np.int64]:
    """The fold of every document, from 0: stratified by label, copies of a text in the same fold.

    There are fewer folds if there are fewer different texts; at least two are needed.
    """
    first = first_copies(documents)
    texts = len(np.unique(first))
    if texts < 2:
        raise ValueError(
            f"Task {name!r} needs at least two different texts to choose by, because some are held out (documents: "
            f"{len(documents):,}); give documents that differ."
        )
    return _fold_of_each(name, first, documents.labels, min(folds, texts))


def dev_folds(documents: StoredDocuments, folds: int = 5) -> NDArray[np.int64]:
    """The folds that divide a dev set, for thresholds from the others; all 0 if it has a single text."""
    if len(np.unique(first_copies(documents))) < 2:
        return np.zeros(len(documents), dtype=np.int64)
    return fold_numbers("dev", documents, folds)


def _fold_of_each(
    name: str, first: NDArray[np.int64], labels: Sequence[Label] | None, folds: int
) -> NDArray[np.int64]:
    """The fold of every item; `first` has for each of them the index of the item that it is a copy of."""
    from sklearn.model_selection import KFold, StratifiedKFold

    texts = np.unique(first)
    if len(texts) < folds:
        raise ValueError(
            f"--folds: the {len(texts)} training documents of task {name!r} cannot be divided in {folds} folds; "
            "choose fewer."
        )
    if labels and isinstance(labels[0], tuple):
        return _fold_of_each_set(_sets_of_texts(labels, first), folds)[np.searchsorted(texts, first)]
    strata = None if labels is None else [labels[index] for index in texts]
    # scikit-learn refuses to stratify where every label is rarer than folds, and warns where some are.
    stratified = strata is not None and max(Counter(strata).values()) >= folds
    kind = StratifiedKFold if stratified else KFold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        parts = list(kind(folds, shuffle=True, random_state=SPLIT_SEED).split(texts, strata))
    numbers = np.empty(len(first), dtype=np.int64)
    for number, (_, chosen) in enumerate(parts):
        numbers[np.isin(first, texts[chosen])] = number
    return numbers


def _fold_of_each_set(sets: Sequence[tuple[int, ...]], folds: int) -> NDArray[np.int64]:
    """Iterative stratification (Sechidis et al., 2011, "On the Stratification of Multi-Label Data").

    The label that the fewest of the remaining items have comes first. Each of its items goes to the fold that lacks
    most of this label, among equals to the one that lacks most items.
    """
    generator = np.random.default_rng(SPLIT_SEED)
    has = multi_hot(sets, max((label for labels in sets for label in labels), default=-1) + 1).astype(bool)
    numbers = np.full(len(sets), -1)
    lacking = np.repeat(has.sum(axis=0)[None] / folds, folds, axis=0)
    room = np.full(folds, len(sets) / folds)
    while (left := numbers < 0).any():
        counts = has[left].sum(axis=0)
        rarest = int(np.where(counts > 0, counts, len(sets) + 1).argmin()) if counts.any() else None
        items = np.flatnonzero(left if rarest is None else left & has[:, rarest])
        for item in generator.permutation(items):
            wanted = room if rarest is None else lacking[:, rarest]
            fold = max(range(folds), key=lambda one: (wanted[one], room[one], generator.random()))
            numbers[item] = fold
            lacking[fold, has[item]] -= 1
            room[fold] -= 1
    return numbers


def _sets_of_texts(labels: Sequence[Label], first: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """The labels of every text, in the order of `np.unique(first)`: all that its copies have."""
    found: dict[int, set[int]] = {}
    for place, label in zip(first.tolist(), labels, strict=True):
        found.setdefault(place, set()).update(as_set(label))
    return [tuple(sorted(found[place])) for place in sorted(found)]


def _divided(items: Items, left_out: NDArray[np.bool_]) -> tuple[Items, Items]:
    return select(items, np.flatnonzero(~left_out).tolist()), select(items, np.flatnonzero(left_out).tolist())


def _rare_labels(names: Sequence[str], counts: Counter[int], folds: int) -> Iterator[str]:
    if not counts:
        return
    rare = ", ".join(names[label] for label, count in sorted(counts.items()) if count < folds)
    if max(counts.values()) < folds:
        yield f"no label has {folds} training documents, so the {folds} folds are not stratified by label"
    elif rare:
        yield f"fewer than {folds} training documents have the label {rare}, so it is missing from some folds"

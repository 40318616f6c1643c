"""Cross-validation: train in folds, one of which is left out of it and takes dev's place.

Which documents make a fold hangs on the train documents and `FOLD_SEED` alone, never on the seed of a run: all
methods, settings and seeds share their folds, so that means over folds can be compared.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from prefixprop.tasks.documents import ClassificationTask
from prefixprop.tasks.registry import Task
from prefixprop.tasks.wikihop import QuestionTask

FOLD_SEED = 10

Item = TypeVar("Item")


def leave_out_fold(task: Task, folds: int, fold: int) -> Task:
    """The task with fold number `fold`, from 0, moved from train to dev; both keep their order.

    The task's own dev and its test are dropped: nothing that is chosen by folds may have seen them. Documents are
    stratified by label, as scikit-learn's `StratifiedKFold` does it; questions have no labels, and are not.
    """
    if len(task.train) < folds:
        raise ValueError(
            f"--folds: the {len(task.train)} train documents of task {task.name!r} cannot be divided in {folds} "
            "folds; choose fewer."
        )
    if isinstance(task, QuestionTask):
        questions, judged = _divided(task.train, _places_of_fold(len(task.train), None, folds, fold))
        return replace(task, train=questions, dev=judged, test=())
    labels = [document.label for document in task.train]
    train, dev = _divided(task.train, _places_of_fold(len(labels), labels, folds, fold))
    unused = f"; the {len(task.dev):,} dev documents are not used" if task.dev else ""
    instead = f"fold {fold} of {folds}, {len(dev):,} train documents, is left out of train and judged on{unused}"
    return replace(task, train=train, dev=dev, test=(), remarks=(*task.remarks, instead, *_rare_labels(task, folds)))


def _places_of_fold(count: int, labels: Sequence[int] | None, folds: int, fold: int) -> set[int]:
    from sklearn.model_selection import KFold, StratifiedKFold

    # scikit-learn refuses to stratify where every label is rarer than folds, and warns where some are.
    stratified = labels is not None and max(Counter(labels).values()) >= folds
    kind = StratifiedKFold if stratified else KFold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        parts = list(kind(folds, shuffle=True, random_state=FOLD_SEED).split([0] * count, labels))
    return set(parts[fold][1].tolist())


def _divided(items: Sequence[Item], left_out: set[int]) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    kept = tuple(item for place, item in enumerate(items) if place not in left_out)
    return kept, tuple(items[place] for place in sorted(left_out))


def _rare_labels(task: ClassificationTask, folds: int) -> Iterator[str]:
    counts = Counter(document.label for document in task.train)
    rare = [task.label_names[label] for label, count in sorted(counts.items()) if count < folds]
    if len(rare) == len(counts):
        yield f"no label has {folds} train documents, so the {folds} folds are not stratified by label"
    elif rare:
        yield f"fewer than {folds} train documents have the label {', '.join(rare)}, so some folds have none of it"

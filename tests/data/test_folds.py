"""Folds of train: every document is left out once, labels keep their shares, and a remark names rare labels."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest

from prefixprop.data import ClassificationTask, Document, QuestionTask, Task, leave_out_fold

from tiny_questions import invented


def task_of(counts: dict[str, int]) -> ClassificationTask:
    """So many train documents of each label, one after the other, with dev and test of their own."""
    labels = [label for label, count in enumerate(counts.values()) for _ in range(count)]
    train = tuple(Document(f"t{number}", "w5", label) for number, label in enumerate(labels))
    return ClassificationTask("mine", tuple(counts), train, (Document("d", "w6", 0),), (Document("e", "w7", 1),))


def ids(task: Task, split: str) -> list[str]:
    return [item.id for item in task.split(split)]


def test_every_document_is_left_out_once_and_the_own_dev_and_test_never_are_read() -> None:
    task = task_of({"law": 30, "art": 20})
    parts = [leave_out_fold(task, 5, fold) for fold in range(5)]
    assert sorted(name for part in parts for name in ids(part, "dev")) == sorted(ids(task, "train"))
    for fold, part in enumerate(parts):
        assert Counter(document.label for document in part.dev) == {0: 6, 1: 4}
        assert ids(part, "train") == [name for name in ids(task, "train") if name not in ids(part, "dev")]
        assert ids(part, "dev") == sorted(ids(part, "dev"), key=ids(task, "train").index)
        assert part.test == ()
        (remark,) = part.remarks
        assert remark.startswith(f"fold {fold} of 5, 10 train documents, is left out of train and evaluated")
        assert remark.endswith(f"; the {len(task.dev)} dev documents are not used")
    assert ids(parts[0], "dev") != ids(task, "train")[:6] + ids(task, "train")[30:34], "folds are shuffled"
    assert ids(parts[2], "dev") == ids(leave_out_fold(task, 5, 2), "dev"), "always the same ones"


def test_labels_rarer_than_folds_are_told() -> None:
    task = task_of({"law": 12, "art": 2, "tax": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = [leave_out_fold(task, 4, fold) for fold in range(4)]
    assert sum(len(part.dev) for part in parts) == 17
    assert all(Counter(document.label for document in part.dev)[0] == 3 for part in parts)
    rare = "fewer than 4 train documents have the label art, tax, so it is missing from some folds"
    assert parts[0].remarks[1:] == (rare,)


def test_where_all_labels_are_rare_there_is_no_stratification() -> None:
    task = task_of({"law": 3, "art": 2, "tax": 3})
    parts = [leave_out_fold(task, 4, fold) for fold in range(4)]
    assert [len(part.dev) for part in parts] == [2, 2, 2, 2]
    assert parts[0].remarks[1:] == ("no label has 4 train documents, so the 4 folds are not stratified by label",)


def test_fewer_documents_than_folds() -> None:
    with pytest.raises(ValueError, match=r"--folds: the 4 train documents of task 'mine' .* 5 folds; choose fewer"):
        leave_out_fold(task_of({"law": 2, "art": 2}), 5, 0)


def test_questions() -> None:
    questions = tuple(invented(10, 1))
    task = QuestionTask("wikihop", questions, questions[:1], questions[1:2])
    parts = [leave_out_fold(task, 3, fold) for fold in range(3)]
    assert [len(part.dev) for part in parts] == [4, 3, 3] and all(part.test == () for part in parts)
    assert sorted(name for part in parts for name in ids(part, "dev")) == sorted(ids(task, "train"))
    assert all(not set(ids(part, "dev")) & set(ids(part, "train")) for part in parts)

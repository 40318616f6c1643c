"""Splits: those of scikit-learn, copies on one side, folds that leave out every document once."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold, train_test_split

from prefixprop.data import ClassificationTask, Document, QuestionTask, Task, draw_sample, select_documents
from prefixprop.data.documents import Label, StoredDocuments
from prefixprop.data.splits import fold_numbers, leave_out_fold, split_off

from tiny_questions import invented


def documents(labels: Sequence[Label], texts: list[int] | None = None) -> StoredDocuments:
    """Documents with these labels; those with the same number of a text are copies."""
    numbers = range(len(labels)) if texts is None else texts
    words = zip(labels, numbers, strict=True)
    found = [Document(str(index), f"text  {text}", label) for index, (label, text) in enumerate(words)]
    return StoredDocuments.packed(found)


def task_of(counts: dict[str, int], texts: list[int] | None = None) -> ClassificationTask:
    """So many training documents of each label, one after the other, with a dev and a test set."""
    labels = [label for label, count in enumerate(counts.values()) for _ in range(count)]
    others = (Document("d", "w6", 0),), (Document("e", "w7", 1),)
    return ClassificationTask("mine", tuple(counts), documents(labels, texts), *others)


def ids(task: Task, split: str) -> list[str]:
    return [item.id for item in task.split(split)]


def test_halves_are_those_of_scikit_learn_in_the_old_order() -> None:
    labels = [0] * 21 + [1] * 10 + [2] * 30
    first, second = train_test_split(range(61), test_size=0.5, stratify=labels, random_state=10)
    kept, split = split_off(documents(labels), fraction=0.5)
    assert [int(document.id) for document in kept] == sorted(first)
    assert [int(document.id) for document in split] == sorted(second)


@example(labels=[0, 0, 0, 0, 1, 1], fraction=0.5, copies=3)  # two of three texts have copies of another label
@example(labels=[0, 0, 0, 1, 0, 0, 1, 1], fraction=0.5, copies=4)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    fraction=st.sampled_from([0.1, 0.5]),
    copies=st.integers(1, 60),
)
def test_every_label_stays_in_what_is_kept_and_copies_on_one_side(
    labels: list[int], fraction: float, copies: int
) -> None:
    texts = [index % copies if copies < len(labels) else index for index in range(len(labels))]
    labels_of_texts = {text: {labels[index] for index, one in enumerate(texts) if one == text} for text in texts}
    counts = Counter(next(iter(found)) for found in labels_of_texts.values() if len(found) == 1)
    if max(counts.values(), default=0) < 2:
        with pytest.raises(ValueError, match="no label has two different texts"):
            split_off(documents(labels, texts), fraction)
        return
    kept, split = split_off(documents(labels, texts), fraction)
    assert sorted((*kept, *split), key=lambda document: int(document.id)) == list(documents(labels, texts))
    assert not {document.text for document in kept} & {document.text for document in split}
    assert {document.label for document in kept} == set(labels)
    assert all(len(labels_of_texts[int(document.text.split()[1])]) == 1 for document in split)
    several = [count for count in counts.values() if count > 1]
    assert len({document.text for document in split}) >= max(fraction * sum(several), len(several))


def test_every_document_is_left_out_once_and_the_dev_and_test_set_are_never_read() -> None:
    task = task_of({"law": 30, "art": 20})
    labels = [document.label for document in task.train]
    expected = list(StratifiedKFold(5, shuffle=True, random_state=10).split(labels, labels))
    parts = [leave_out_fold(task, 5, fold) for fold in range(5)]
    assert sorted(name for part in parts for name in ids(part, "dev")) == sorted(ids(task, "train"))
    for fold, part in enumerate(parts):
        assert ids(part, "dev") == [str(index) for index in expected[fold][1]]
        assert ids(part, "train") == [str(index) for index in expected[fold][0]]
        assert Counter(document.label for document in part.dev) == {0: 6, 1: 4} and part.test == ()
        (remark,) = part.remarks
        assert remark.startswith(f"fold {fold} of 5, 10 training documents, is the dev set of this run")
        assert remark.endswith("; the 1 dev documents are not used")


@pytest.mark.parametrize(
    ("counts", "sizes", "remark"),
    [
        (
            (12, 2, 3),
            None,
            "fewer than 4 training documents have the label art, tax, so it is missing from some folds",
        ),
        ((3, 2, 3), [2] * 4, "no label has 4 training documents, so the 4 folds are not stratified by label"),
    ],
)
def test_labels_rarer_than_folds_are_told(counts: tuple[int, ...], sizes: list[int] | None, remark: str) -> None:
    task = task_of(dict(zip(("law", "art", "tax"), counts, strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = [leave_out_fold(task, 4, fold) for fold in range(4)]
    assert sum(len(part.dev) for part in parts) == sum(counts)
    assert sizes is None or [len(part.dev) for part in parts] == sizes
    assert all(part.remarks[1:] == (remark,) for part in parts)  # type: ignore[union-attr]


def test_folds_of_questions() -> None:
    questions = tuple(invented(10, 1))
    task = QuestionTask("wikihop", questions, questions[:1], questions[1:2])
    parts = [leave_out_fold(task, 3, fold) for fold in range(3)]
    assert [len(part.dev) for part in parts] == [4, 3, 3] and all(part.test == () for part in parts)
    assert sorted(name for part in parts for name in ids(part, "dev")) == sorted(ids(task, "train"))
    assert all(not set(ids(part, "dev")) & set(ids(part, "train")) for part in parts)


def test_what_a_run_reads() -> None:
    task = task_of({"law": 30, "art": 20})
    assert select_documents(task) == task
    found = select_documents(task, folds=5, fold=1, max_documents={"train": 7, "dev": None, "test": 0}, seed=3)
    fold = leave_out_fold(task, 5, 1)
    assert found.dev == fold.dev and found.train == draw_sample(fold.train, 7, seed=3) and len(found.train) == 7
    assert select_documents(task, max_documents={"test": 0}).test == ()
    for needs_dev in (True, False):  # a fold is one of all training documents
        whole = select_documents(replace(task, dev=()), folds=5, fold=1, needs_dev=needs_dev)
        assert (whole.train, whole.dev) == (fold.train, fold.dev)
    with pytest.raises(ValueError, match="Task 'mine' has no training documents"):
        select_documents(replace(task, train=()))


def test_a_dev_set_is_split_off_where_there_is_none_and_one_is_needed() -> None:
    task = replace(task_of({"law": 30, "art": 20}), dev=())
    train, dev = split_off(task.train, 0.1)
    found = select_documents(task)
    assert (found.train, found.dev, found.test) == (train, dev, task.test) and len(dev) == 5
    assert Counter(document.label for document in dev) == {0: 3, 1: 2}
    assert found.remarks == (  # type: ignore[union-attr]
        "no dev documents were given: 5 of 50 training documents, drawn with seed 10 and stratified by label, are "
        "the dev set",
    )
    few = select_documents(task, max_documents={"train": 7, "dev": 3}, seed=3)
    assert (few.train, few.dev) == (draw_sample(train, 7, seed=3), draw_sample(dev, 3, seed=3))
    assert select_documents(task, needs_dev=False) == task


def test_where_no_dev_set_can_be_split_off() -> None:
    few = replace(task_of({"law": 1, "art": 1}), dev=())
    with pytest.raises(ValueError, match=r"2 documents cannot be split in two: .* Give both parts as files"):
        select_documents(few)
    assert select_documents(few, needs_dev=False) == few
    questions = QuestionTask("wikihop", tuple(invented(4, 1)), (), ())
    with pytest.raises(ValueError, match="Task 'wikihop' has no dev questions, which every run needs; give some"):
        select_documents(questions)


def test_fold_numbers_are_the_folds_that_runs_leave_out() -> None:
    texts = [index % 17 for index in range(50)]
    for task in (task_of({"law": 30, "art": 20}), task_of({"law": 30, "art": 20}, texts)):
        numbers = fold_numbers("mine", task.train, 5)
        for fold in range(5):
            left_out = [str(index) for index in np.flatnonzero(numbers == fold)]
            part = leave_out_fold(task, 5, fold)
            assert left_out == ids(part, "dev")
            assert not {one.text for one in part.train} & {one.text for one in part.dev}
    with pytest.raises(ValueError, match=r"--folds: the 17 training documents of task 'mine' .* 18 folds"):
        leave_out_fold(task, 18, 0)


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=60), copies=st.integers(2, 60), folds=st.integers(2, 9)
)
def test_every_document_has_a_fold_and_copies_have_the_same(labels: list[int], copies: int, folds: int) -> None:
    texts = [index % copies for index in range(len(labels))]
    numbers = fold_numbers("mine", documents(labels, texts), folds)
    assert np.array_equal(np.unique(numbers), np.arange(min(folds, len(set(texts)))))
    assert all(len(set(numbers[np.array(texts) == text])) == 1 for text in texts)


@pytest.mark.parametrize(("labels", "texts"), [([0], None), ([0, 1, 0], [7, 7, 7])])
def test_folds_need_two_different_texts(labels: list[int], texts: list[int] | None) -> None:
    with pytest.raises(
        ValueError, match=r"two different texts to choose by, .* \(documents: \d\); give documents that differ"
    ):
        fold_numbers("mine", documents(labels, texts), 5)


def test_half_of_a_large_dev_set_is_set_aside() -> None:
    texts = [number // 2 for number in range(60)]  # every text twice
    dev = documents([number % 3 for number in range(60)], texts)
    task = replace(task_of({"a": 5, "b": 5, "c": 5}), dev=dev)
    assert select_documents(task, set_aside_from=61).dev == task.dev
    found = select_documents(task, set_aside_from=60)
    assert isinstance(found, ClassificationTask)
    one, two = ({document.text for document in found.split(name)} for name in ("dev", "calibration"))
    assert len(found.dev) == len(found.calibration) == 30 and not one & two
    assert found.notes()[0] == "30 of 60 dev documents are set aside to find which answers to accept"
    # Which ones does not depend on the labels: several label columns share their documents.
    other = replace(task, dev=documents([0] * 60, texts))
    assert ids(select_documents(other, set_aside_from=60), "calibration") == ids(found, "calibration")


# --- several labels -------------------------------------------------------------------------------------------------


def labelled_sets(
    labels: list[tuple[int, ...]], texts: list[int] | None = None, names: int = 6
) -> ClassificationTask:
    return ClassificationTask("mine", tuple("abcdef"[:names]), documents(labels, texts), (), (), several_labels=True)


SETS = st.lists(st.sets(st.integers(0, 5)).map(sorted).map(tuple), min_size=12, max_size=80)


@given(labels=SETS, folds=st.integers(2, 5), copies=st.integers(6, 80))
def test_folds_share_every_label_and_keep_copies_together(
    labels: list[tuple[int, ...]], folds: int, copies: int
) -> None:
    texts = [place % copies for place in range(len(labels))]
    task = labelled_sets(labels, texts)
    found = fold_numbers("mine", task.train, folds)
    assert all(len({found[place] for place in range(len(texts)) if texts[place] == text}) == 1 for text in texts)
    if copies >= len(labels):
        sizes = np.bincount(found, minlength=folds)
        assert sizes.sum() == len(labels) and sizes.max() - sizes.min() <= max(4, len(labels) / folds)
        rarest = min((count, label) for label, count in enumerate(task.label_array(task.train).sum(axis=0)))[1]
        of_rarest = np.bincount(found[task.label_array(task.train)[:, rarest] == 1], minlength=folds)
        assert of_rarest.max() - of_rarest.min() <= 1


@given(labels=SETS, copies=st.integers(6, 80))
def test_what_is_kept_has_every_label(labels: list[tuple[int, ...]], copies: int) -> None:
    texts = [place % copies for place in range(len(labels))]
    task = labelled_sets(labels, texts)
    try:
        kept, split = split_off(task.train, 0.1)
    except ValueError as error:
        assert "cannot be split in two" in str(error)
        return
    assert len(kept) + len(split) == len(labels) and len(split) > 0
    assert not {document.text for document in kept} & {document.text for document in split}
    assert {one for document in kept for one in document.label} == {one for label in labels for one in label}


def test_notes_count_folds_and_missing_labels() -> None:
    task = labelled_sets([(0,), (0, 1), (1,), (0, 2), (), (1,)] * 4 + [(3,)] * 2, names=5)
    assert "no training document has the label e" in task.notes()
    left_out = select_documents(task, folds=5, fold=0)
    assert any("fewer than 5 training documents have the label c, d" in note for note in left_out.notes())
    without = select_documents(task)
    assert len(without.dev) == 3 and "are the dev set" in without.notes()[0]

from __future__ import annotations

import dataclasses

import pytest

from prefixprop.data import ClassificationTask, Document, Split
from prefixprop.data.documents import StoredDocuments


def make_task(train: Split = (), dev: Split = (), label_names: tuple[str, ...] = ("no", "yes")) -> ClassificationTask:
    return ClassificationTask(name="toy", label_names=label_names, train=train, dev=dev, test=())


def test_splits_are_found_by_name() -> None:
    first, second = Document("1", "one", 0), Document("2", "two", 1, title="Two")
    task = make_task(train=(first,), dev=(second,))
    assert task.split("train") == (first,)
    assert task.split("dev") == (second,)
    assert task.split("test") == ()
    assert task.num_labels == 2


def test_an_unknown_split_names_the_choices() -> None:
    with pytest.raises(ValueError, match="'validation'; choose one of train, dev, test"):
        make_task().split("validation")


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_outside_the_range_names_document_and_split(label: int) -> None:
    with pytest.raises(ValueError, match=f"'7' in split 'dev' of task 'toy' has label {label}"):
        make_task(dev=(Document("7", "text", label),))


def test_ids_are_unique_within_a_split_only() -> None:
    document = Document("7", "text", 0)
    assert make_task(train=(document,), dev=(document,)).train == (document,)
    with pytest.raises(ValueError, match="'7' occurs more than once in split 'train'"):
        make_task(train=(document, document))


def test_one_label_is_not_a_classification() -> None:
    with pytest.raises(ValueError, match="at least two labels"):
        make_task(label_names=("only",))


def test_documents_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Document("1", "one", 0).label = 1


def test_notes_are_the_remarks_and_the_counted_empty_documents() -> None:
    train = (Document("1", "", 0), Document("2", " \n\t", 1), Document("3", "text", 1))
    task = make_task(train=train, dev=(Document("1", "", 0),))
    assert task.notes() == ["2 of 3 train documents are empty", "1 of 1 dev documents is empty"]
    assert dataclasses.replace(task, remarks=("made by hand",)).notes()[0] == "made by hand"
    assert make_task(train=train[2:]).notes() == []


def test_packed_documents_are_a_sequence_like_any_other() -> None:
    documents = tuple(
        Document(str(number), text, number % 2) for number, text in enumerate(["", " \n", "né", "\ud83d"])
    )
    packed = StoredDocuments.packed(documents)
    assert packed == documents and documents == packed and list(packed) == list(documents)
    assert packed != documents[:3] and packed != "four" and packed[-1] == documents[-1]
    assert packed[1:] == documents[1:] and packed[1:].select([2, 0]) == (documents[3], documents[1])
    assert packed[::-1].ids == ["3", "2", "1", "0"] and packed[::-1].labels == [1, 0, 1, 0]
    with pytest.raises(IndexError):
        packed[4]
    task, stored = make_task(train=documents, dev=documents[2:]), make_task(train=packed, dev=packed[2:])
    assert stored == task and stored.notes() == task.notes() == ["2 of 4 train documents are empty"]
    with pytest.raises(ValueError, match="'1' in split 'train' of task 'toy' has label 2"):
        make_task(train=StoredDocuments.packed((documents[0], dataclasses.replace(documents[1], label=2))))
    with pytest.raises(ValueError, match="'0' occurs more than once in split 'train'"):
        make_task(train=packed.select([0, 0]))

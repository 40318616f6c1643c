"""Documents in memory and on the disk, what a user is told about them, and the fingerprint of a data set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixprop.data import (
    ClassificationTask,
    Document,
    draw_sample,
    fingerprint,
    load_files,
    select_documents,
)
from prefixprop.data.documents import StoredDocuments, first_copies


def make_task(*splits: Sequence[Document], **options: Any) -> ClassificationTask:
    names = options.pop("label_names", ("no", "yes"))
    splits = {"train": (), "dev": (), "test": ()} | dict(zip(("train", "dev", "test"), splits, strict=False))
    return ClassificationTask("toy", names, **(splits | options))


def documents(*texts: str) -> tuple[Document, ...]:
    """Documents with these texts; their labels are 0, 1, 0, 1 and so on."""
    return tuple(Document(str(number), text, number % 2) for number, text in enumerate(texts))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"dev": (Document("7", "text", -1),)}, "'7' in split 'dev' of task 'toy' has label -1"),
        ({"train": (Document("7", "text", 2),)}, "'7' in split 'train' .* has label 2"),
        ({"train": (Document("7", "text", 0),) * 2}, "'7' occurs more than once in split 'train'"),
        ({"label_names": ("only",)}, "at least two labels"),
        ({"train": (Document("1", "x", (0, 9)),), "several_labels": True}, "has label 9, but"),
        ({"train": (Document("1", "x", 1),), "several_labels": True}, "must have several labels, not one: 1"),
        ({"train": (Document("1", "x", (1,)),)}, "must have one label, not several"),
    ],
)
def test_what_is_no_task(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_task(**wrong)


TOO_GOOD = "metrics are too good; remove them from one of the two"


@pytest.mark.parametrize(
    ("splits", "notes"),
    [
        ([("a", "b"), ("c", "d"), ()], []),
        ([("", " \n\t", "a"), ("b", "c"), ()], ["2 of 3 training documents are empty"]),
        ([("a", "b"), ("c", "d"), ("e", "f", "e")], ["1 of 3 test documents is the same as another one"]),
        ([("a", "b", "a ", "b", "\ta"), ("c", "d"), ()], ["3 of 5 training documents are the same as another one"]),
        (
            [("a b", "c", ""), ("a\nb", "e"), ("c", "a  b", "f", "g")],
            [
                "1 of 3 training documents is empty",
                f"1 of 2 dev documents is also in the training set: {TOO_GOOD}",
                f"2 of 4 test documents are also in the training set: {TOO_GOOD}",
                f"1 of 4 test documents is also in the dev set: {TOO_GOOD}",
            ],
        ),
        ([("a",), ("b",), ("c",)], [f"no {name} document has the label yes" for name in ("training", "dev", "test")]),
    ],
)
def test_what_a_user_is_told(splits: list[tuple[str, ...]], notes: list[str]) -> None:
    task = make_task(*(documents(*texts) for texts in splits))
    assert task.notes() == notes
    assert replace(task, remarks=("made by hand",)).notes() == ["made by hand", *notes]


def test_packed_documents_are_a_sequence_like_any_other() -> None:
    plain = documents("", " \n", "né", "\ud83d", "né ")
    packed = StoredDocuments.packed(plain)
    assert packed == plain and plain == packed and list(packed) == list(plain)
    assert packed != plain[:3] and packed != "four" and packed[-1] == plain[-1]
    assert packed[1:] == plain[1:] and packed[1:].select([2, 0]) == (plain[3], plain[1])
    assert packed[::-1].ids == ["4", "3", "2", "1", "0"] and packed[::-1].labels == [0, 1, 0, 1, 0]
    with pytest.raises(IndexError):
        packed[5]
    assert make_task(train=packed, dev=packed[2:]) == make_task(train=plain, dev=plain[2:])
    assert packed.digests.tolist()[:2] == [0, 0] and first_copies(packed).tolist() == [0, 1, 2, 3, 2]
    titled = (Document("1", "a", 0, "A"), Document("2", "b", 1))
    assert StoredDocuments.packed(titled) == titled


@pytest.fixture
def stored_task(tmp_path: Path) -> ClassificationTask:
    """A task whose dev set is a part of its training files."""
    texts = ["one", " \n", 'naïve "café"', "half \ud83d", "five", "six"]
    records = [{"id": number, "text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    task = select_documents(load_files([tmp_path / "train.jsonl"]))
    assert isinstance(task, ClassificationTask)
    return task


def test_the_fingerprint_is_that_of_the_documents_wherever_they_are(
    stored_task: ClassificationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprint(stored_task) == "ca29005ad257b9f4"  # as in earlier versions: runs store it
    in_memory = replace(stored_task, train=tuple(stored_task.train), dev=tuple(stored_task.dev))
    assert fingerprint(in_memory) == fingerprint(stored_task)

    def refuse(self: StoredDocuments, index: int) -> None:
        raise AssertionError("a text was read")

    monkeypatch.setattr(StoredDocuments, "__getitem__", refuse)
    assert fingerprint(stored_task) == "ca29005ad257b9f4"


def test_every_part_of_the_documents_has_its_own_fingerprint(stored_task: ClassificationTask) -> None:
    parts = [
        stored_task,
        replace(stored_task, train=draw_sample(stored_task.train, 3, seed=0)),
        replace(stored_task, train=draw_sample(stored_task.train, 3, seed=1)),
        replace(stored_task, dev=()),
        replace(stored_task, dev=(), test=stored_task.dev),
        replace(stored_task, train=stored_task.train[::-1]),
    ]
    assert len({fingerprint(part) for part in parts}) == len(parts)

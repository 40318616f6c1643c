"""Documents with several labels: from files of every kind, in folds, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from prefixprop.data import ClassificationTask, Document, load_files, select_documents
from prefixprop.data.documents import StoredDocuments
from prefixprop.data.files import Columns, label_documents
from prefixprop.data.rows import Row
from prefixprop.data.splits import fold_numbers, split_off

ROWS: list[tuple[str, list[Any]]] = [("one", ["law firm", 7]), ("two", []), ("three", [7, "7", "tax; VAT"])]
NAMES = ("7", "law firm", "tax; VAT")
LABELS = [(0, 1), (), (0, 2)]


def write(path: Path, rows: list[tuple[str, Any]] = ROWS) -> Path:
    if path.suffix == ".jsonl":
        lines = (json.dumps({"text": text, "label": labels}) for text, labels in rows)
        path.write_text("\n".join(lines), encoding="utf-8")
    elif path.suffix == ".parquet":
        texts, labels = [text for text, _ in rows], [[str(label) for label in labels] for _, labels in rows]
        parquet.write_table(arrow.table({"text": texts, "label": labels}), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerows([("text", "label"), *((text, " | ".join(map(str, labels))) for text, labels in rows)])
    return path


@pytest.mark.parametrize(
    ("name", "options"), [("x.jsonl", {}), ("x.parquet", {}), ("x.csv", {"label_separator": "|"})]
)
def test_lists_and_separated_texts_say_the_same(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    task = load_files([write(tmp_path / name)], **options)
    assert task.several_labels and task.label_names == NAMES
    assert [document.label for document in task.train] == LABELS
    assert task.label_array(task.train).tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1]]
    assert load_files([tmp_path / name], **options) == task  # from the cache
    assert StoredDocuments.packed(tuple(task.train)).labels == LABELS
    assert task.train[1:].labels == LABELS[1:] and task.train.select([2, 0]).labels == [LABELS[2], LABELS[0]]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([("a", ["x", "y"]), ("b", "x")], r":2: the label \(column 'label'\) must be a list, .*got str 'x'"),
        ([("a", "x"), ("b", ["x"])], r":2: the label .* is a list, and the rows before have one label each"),
        ([("a", ["x", "y"]), ("b", None)], r":2: .*must be a list, as in the rows before, \[\] without labels"),
        ([("a", ["x", " "])], r":1: the label .* is missing"),
        ([("a", ["x", ["y"]])], r":1: the label .* must be a name or a number, got list"),
        ([("a", ["x"]), ("b", [])], r":1: this and all of the 2 .* the label 'x' or none; .* Instead of lists, give"),
        ([("a", []), ("b", [])], "neither this nor any other training document has a label"),
        ([("a", ["0.5", "1"])], r":1: the label 0\.5 is a quantity"),
        ([("a", 0.25), ("b", 3)], r":1: the label 0\.25 is a quantity, and this package learns classes, not regr"),
        ([("a", 1), ("b", "2.5")], r":2: the label 2\.5 is a quantity.* give them names, such as 'v2\.5'"),
    ],
)
def test_what_is_no_label(tmp_path: Path, rows: list[tuple[str, Any]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_files([write(tmp_path / "x.jsonl", rows)])


def test_a_label_that_only_the_test_set_has(tmp_path: Path) -> None:
    test = write(tmp_path / "y.jsonl", [("four", ["7", "art"])])
    with pytest.raises(
        ValueError, match=r"y\.jsonl:1: the label 'art' is not in the training set; the labels are 7,"
    ):
        load_files([write(tmp_path / "x.jsonl")], test=[test])
    rows = [Row("z:1", {"text": "four", "label": []}), Row("z:2", {"text": "five", "label": ["tax; VAT"]})]
    found = label_documents(rows, Columns(), NAMES, several_labels=True)
    assert [document.label for document in found] == [(), (2,)]


def task_of(labels: list[tuple[int, ...]], texts: list[int] | None = None, names: int = 6) -> ClassificationTask:
    numbers = range(len(labels)) if texts is None else texts
    documents = tuple(
        Document(str(place), f"text {text}", label)
        for place, (text, label) in enumerate(zip(numbers, labels, strict=True))
    )
    return ClassificationTask("mine", tuple("abcdef"[:names]), documents, (), (), several_labels=True)


SETS = st.lists(st.sets(st.integers(0, 5)).map(sorted).map(tuple), min_size=12, max_size=80)


@given(labels=SETS, folds=st.integers(2, 5), copies=st.integers(6, 80))
def test_folds_share_every_label_and_keep_copies_together(
    labels: list[tuple[int, ...]], folds: int, copies: int
) -> None:
    texts = [place % copies for place in range(len(labels))]
    task = task_of(labels, texts)
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
    task = task_of(labels, texts)
    try:
        kept, split = split_off(task.train, 0.1)
    except ValueError as error:
        assert "cannot be split in two" in str(error)
        return
    assert len(kept) + len(split) == len(labels) and len(split) > 0
    assert not {document.text for document in kept} & {document.text for document in split}
    assert {one for document in kept for one in document.label} == {one for label in labels for one in label}


def test_notes_count_folds_and_missing_labels() -> None:
    task = task_of([(0,), (0, 1), (1,), (0, 2), (), (1,)] * 4 + [(3,)] * 2, names=5)
    assert "no training document has the label e" in task.notes()
    left_out = select_documents(task, folds=5, fold=0)
    assert any("fewer than 5 training documents have the label c, d" in note for note in left_out.notes())
    without = select_documents(task)
    assert len(without.dev) == 3 and "are the dev set" in without.notes()[0]


@pytest.mark.parametrize(
    ("label", "several", "complaint"),
    [((0, 9), True, "has label 9, but"), (1, True, "must have several labels, not one: 1"), ((1,), False, "one lab")],
)
def test_labels_that_do_not_fit_the_task(label: Any, several: bool, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ClassificationTask("mine", ("a", "b"), (Document("1", "x", label),), (), (), several_labels=several)

"""From rows of a table to a classification task: ids, texts and labels, with errors that name the row."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefixprop.tasks.documents import ClassificationTask, Document, Split
from prefixprop.tasks.rows import Row
from prefixprop.tasks.splits import SPLIT_SEED, split_off

DEV_FRACTION = 0.1
_ID_COLUMN = "id"
_LABELS_NAMED_IN_ERRORS = 30


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are read.

    Attributes:
        text: The document.
        label: Its label, a name or a number.
        id: What the document is called in predictions; None: see `default_id_column`.
        label_name: The name of a label that is a number; a table may lack this column.
        label_names: The names of the labels, where the labels are numbers from 0.
    """

    text: str = "text"
    label: str = "label"
    id: str | None = None
    label_name: str | None = None
    label_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Label:
    """A label; `number` is what it is sorted by, and no two names may have the same `meaning`."""

    name: str
    number: float | None
    meaning: str | float | None


@dataclass(frozen=True)
class _LabelledRow:
    location: str
    id: str
    text: str
    label: _Label


def build_task(
    name: str,
    splits: Mapping[str, Iterable[Row]],
    columns: Columns,
    prepare: Callable[[str], str] = str,
    remarks: tuple[str, ...] = (),
) -> ClassificationTask:
    """Make a task of the rows of its splits: "train", and "dev" and "test" if there are any.

    The labels are those of train, sorted as numbers if all of them are numbers, by name otherwise. A missing dev is
    split off from train (`DEV_FRACTION`, stratified, `SPLIT_SEED`). `prepare` is applied to every text.
    """
    train_rows = list(_labelled_rows(splits["train"], columns, prepare))
    labels = _LabelSet(train_rows)
    train = labels.documents(train_rows)
    if "dev" in splits:
        dev = labels.documents(_labelled_rows(splits["dev"], columns, prepare))
    else:
        train, dev = split_off(train, DEV_FRACTION)
        remarks += (
            f"no dev documents were given: {len(dev):,} of {len(train_rows):,} train documents, "
            f"drawn with seed {SPLIT_SEED} and stratified by label, are dev",
        )
    test = labels.documents(_labelled_rows(splits.get("test", ()), columns, prepare))
    return ClassificationTask(name, labels.names, train=train, dev=dev, test=test, remarks=remarks)


def label_documents(
    rows: Iterable[Row], columns: Columns, label_names: Sequence[str], prepare: Callable[[str], str] = str
) -> Split:
    """Make documents of rows; a label that is not one of `label_names`, such as a model's labels, is refused."""
    indices = {name: index for index, name in enumerate(label_names)}
    documents = []
    for row in _labelled_rows(rows, columns, prepare):
        if row.label.name not in indices:
            raise ValueError(
                f"{row.location}: the label {row.label.name!r} is unknown; the labels are {_listed(label_names)}."
            )
        documents.append(Document(row.id, row.text, indices[row.label.name]))
    return tuple(documents)


class _LabelSet:
    """The labels of the training documents, in order."""

    def __init__(self, train: list[_LabelledRow]) -> None:
        self._first_rows: dict[str, _LabelledRow] = {}
        self._names_by_meaning: dict[str | float | None, str] = {}
        for row in train:
            self._first_rows.setdefault(row.label.name, row)
            self._names_by_meaning.setdefault(row.label.meaning, row.label.name)
        self.names = tuple(sorted(self._first_rows, key=self._order()))
        if not train:
            raise ValueError("There are no train documents.")
        if len(self.names) < 2:
            raise ValueError(
                f"{train[0].location}: this and all of the {len(train):,} train documents have the label "
                f"{self.names[0]!r}; a classifier needs at least two labels to learn."
            )
        self._indices = {name: index for index, name in enumerate(self.names)}

    def documents(self, rows: Iterable[_LabelledRow]) -> Split:
        return tuple(Document(row.id, row.text, self._index(row)) for row in rows)

    def _order(self) -> Callable[[str], Any]:
        numbers = {name: row.label.number for name, row in self._first_rows.items()}
        if any(number is None for number in numbers.values()):
            return str
        return lambda name: (numbers[name], name)

    def _index(self, row: _LabelledRow) -> int:
        label = row.label
        if label.name not in self._indices:
            raise ValueError(
                f"{row.location}: no train document has the label {label.name!r}; train has {_listed(self.names)}."
            )
        first = self._first_rows[label.name]
        if label.number != first.label.number:
            raise ValueError(
                f"{row.location}: the label {label.name!r} has the number {_spelled(label.number)} here and "
                f"{_spelled(first.label.number)} at {first.location}; a name must have one number."
            )
        if (other := self._names_by_meaning[label.meaning]) != label.name:
            raise ValueError(
                f"{row.location}: the label {_spelled(label.number)} has the name {label.name!r} here and {other!r} "
                f"at {self._first_rows[other].location}; a number must have one name."
            )
        return self._indices[label.name]


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:_LABELS_NAMED_IN_ERRORS])
    more = len(names) - _LABELS_NAMED_IN_ERRORS
    return f"{listed} and {more} more" if more > 0 else listed


def _labelled_rows(rows: Iterable[Row], columns: Columns, prepare: Callable[[str], str]) -> Iterator[_LabelledRow]:
    rows = list(rows)
    for row, document_id in zip(rows, _ids(rows, columns.id), strict=True):
        text = prepare(text_of(row, columns.text))
        yield _LabelledRow(row.location, document_id, text, _label(row, columns))


def default_id_column(first: Row) -> str | None:
    """The column of ids if the user named none: "id" if the first row has it; otherwise documents get numbers."""
    return _ID_COLUMN if _ID_COLUMN in first.values else None


def _ids(rows: Sequence[Row], column: str | None) -> list[str]:
    if column is not None:
        return _distinct_ids(rows, column)
    if rows and (found := default_id_column(rows[0])) is not None:
        with contextlib.suppress(ValueError):  # the user did not say that this column has an id for every document
            return _distinct_ids(rows, found)
    return [str(number) for number in range(1, len(rows) + 1)]


def _distinct_ids(rows: Sequence[Row], column: str) -> list[str]:
    locations: dict[str, str] = {}
    for row in rows:
        document_id = id_of(row, column)
        if document_id in locations:
            raise ValueError(
                f"{row.location}: the id {document_id!r} is also that of {locations[document_id]}; ids must differ "
                "within a split."
            )
        locations[document_id] = row.location
    return list(locations)


def _value(row: Row, column: str) -> Any:
    if column not in row.values:
        there = ", ".join(str(name) for name in row.values)
        raise ValueError(f"{row.location}: there is no column {column!r}; the columns are {there}.")
    return row.values[column]


def text_of(row: Row, column: str) -> str:
    """The text of a row; a gap in the table is an empty text."""
    text = _value(row, column)
    if text is None:  # an empty document, which is counted rather than refused
        return ""
    if not isinstance(text, str):
        raise ValueError(f"{row.location}: the column {column!r} must hold text, got {_described(text)}.")
    return text


def id_of(row: Row, column: str) -> str:
    """The id of the document in a row."""
    document_id = _value(row, column)
    if document_id is None or document_id == "":
        raise ValueError(f"{row.location}: the id (column {column!r}) is missing.")
    if not isinstance(document_id, str | int):
        raise ValueError(f"{row.location}: the id must be text or a whole number, got {_described(document_id)}.")
    return str(document_id)


def _label(row: Row, columns: Columns) -> _Label:
    value, subject = _value(row, columns.label), f"{row.location}: the label (column {columns.label!r})"
    if columns.label_names is not None:
        if not (isinstance(value, int) and 0 <= value < len(columns.label_names)):
            raise ValueError(f"{subject} must be a number from 0 to {len(columns.label_names) - 1}, got {value!r}.")
        return _Label(columns.label_names[value], value, value)
    label = _plain_label(value, subject)
    name = None if columns.label_name is None else row.values.get(columns.label_name)
    if name is None:
        return label
    named = _plain_label(name, f"{row.location}: the label's name (column {columns.label_name!r})")
    return _Label(named.name, label.number, named.name if label.number is None else label.number)


def _plain_label(value: Any, subject: str) -> _Label:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # tables with gaps store whole numbers as 1.0
    no_number = isinstance(value, float) and math.isnan(value)
    if value is None or no_number or (isinstance(value, str) and not value.strip()):
        raise ValueError(f"{subject} is missing; every document needs one.")
    if not isinstance(value, str | int | float):
        raise ValueError(f"{subject} must be a name or a number, got {_described(value)}.")
    name = str(value).strip()
    # 1.1 and 1.10, 01 and 1 may be sections or codes, but 1 and 1.0 are what a table with gaps makes of one number.
    return _Label(name, _number(name), name.removesuffix(".0"))


def _number(name: str) -> float | None:
    try:
        number = float(name)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _spelled(number: float | None) -> str:
    return "none" if number is None else f"{number:g}"


def _described(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"

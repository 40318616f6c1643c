"""From rows of a table to a classification task: ids, texts and labels, with errors that name the row."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixprop.data.cache import Writer, in_memory, stored
from prefixprop.data.documents import SPLIT_NAMES, ClassificationTask, Document, Split, SplitWriter, StoredDocuments
from prefixprop.data.rows import FileRows, Row
from prefixprop.data.splits import SPLIT_SEED, split_off

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


@dataclass(frozen=True, slots=True)
class _LabelledRow:
    location: str
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

    Rows of files are read once and kept in the cache; a later call neither parses nor holds them.
    """

    def fill(writer: Writer) -> None:
        labels: _LabelSet | None = None
        for split in (name for name in SPLIT_NAMES if name in splits):
            documents = SplitWriter(writer, split)
            ids, rows = _write_texts(documents, splits[split], columns, prepare)
            labels = labels or _LabelSet(rows)  # of train, which comes first
            documents.finish(ids, [labels.index(row) for row in rows])
            writer.facts["label_names"] = labels.names

    key = _key(splits, columns, prepare)
    entry = in_memory(fill) if key is None else stored("documents", key, fill)
    documents: dict[str, Split] = {split: StoredDocuments.of(entry, split) for split in splits}
    if "dev" not in documents:
        count = len(documents["train"])
        documents["train"], documents["dev"] = split_off(documents["train"], DEV_FRACTION)
        remarks += (
            f"no dev documents were given: {len(documents['dev']):,} of {count:,} train documents, "
            f"drawn with seed {SPLIT_SEED} and stratified by label, are dev",
        )
    return ClassificationTask(name, tuple(entry.facts["label_names"]), **{"test": (), **documents}, remarks=remarks)


def _key(splits: Mapping[str, Iterable[Row]], columns: Columns, prepare: Callable[[str], str]) -> str | None:
    """Identifies what is made of the files and the code that makes it; None if rows or `prepare` have no identity."""
    files = {split: rows for split, rows in splits.items() if isinstance(rows, FileRows)}
    if len(files) < len(splits):
        return None
    code = set(Path(__file__).parent.glob("*.py"))
    module_name, name = getattr(prepare, "__module__", None), getattr(prepare, "__qualname__", "")
    if prepare is not str:
        module = sys.modules.get(str(module_name))
        file = getattr(module, "__file__", None)
        if file is None or getattr(module, name, None) is not prepare:
            return None  # a lambda, say, or a method
        code.add(Path(file))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(code)))
    digests = {split: rows.digest() for split, rows in sorted(files.items())}
    return f"{digests} {columns} {module_name}.{name} {digest.hexdigest()}"


def _write_texts(
    documents: SplitWriter, rows: Iterable[Row], columns: Columns, prepare: Callable[[str], str]
) -> tuple[list[str], list[_LabelledRow]]:
    """Write the texts, and return ids and labels, which are known for good when all rows have been read."""
    ids = _Ids(columns.id)
    labelled: list[_LabelledRow] = []
    labels: dict[_Label, _Label] = {}  # one object for each label, not for each row
    for row in rows:
        ids.add(row)
        documents.add_text(prepare(text_of(row, columns.text)))
        label = _label(row, columns)
        labelled.append(_LabelledRow(row.location, labels.setdefault(label, label)))
    return ids.all(), labelled


def label_documents(
    rows: Iterable[Row], columns: Columns, label_names: Sequence[str], prepare: Callable[[str], str] = str
) -> Split:
    """Make documents of rows; a label that is not one of `label_names`, such as a model's labels, is refused."""
    indices = {name: index for index, name in enumerate(label_names)}
    ids, texts, labels = _Ids(columns.id), [], []
    for row in rows:
        ids.add(row)
        texts.append(prepare(text_of(row, columns.text)))
        label = _label(row, columns).name
        if label not in indices:
            raise ValueError(
                f"{row.location}: the label {label!r} is unknown; the labels are {_listed(label_names)}."
            )
        labels.append(indices[label])
    return tuple(map(Document, ids.all(), texts, labels))


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

    def _order(self) -> Callable[[str], Any]:
        numbers = {name: row.label.number for name, row in self._first_rows.items()}
        if any(number is None for number in numbers.values()):
            return str
        return lambda name: (numbers[name], name)

    def index(self, row: _LabelledRow) -> int:
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


def default_id_column(first: Row) -> str | None:
    """The column of ids if the user named none: "id" if the first row has it; otherwise documents get numbers."""
    return _ID_COLUMN if _ID_COLUMN in first.values else None


class _Ids:
    """The ids of a split, row by row: those of a column or, without one that has an id for every row, numbers."""

    def __init__(self, column: str | None) -> None:
        self._column, self._was_named = column, column is not None
        self._locations: dict[str, str] = {}
        self._count = 0

    def add(self, row: Row) -> None:
        if self._count == 0 and not self._was_named:
            self._column = default_id_column(row)
        self._count += 1
        if self._column is None:
            return
        try:
            self._add_id(row, self._column)
        except ValueError:
            if self._was_named:
                raise
            self._column = None  # the user did not say that it has an id for every document

    def all(self) -> list[str]:
        return (
            [str(number) for number in range(1, self._count + 1)] if self._column is None else list(self._locations)
        )

    def _add_id(self, row: Row, column: str) -> None:
        document_id = id_of(row, column)
        if document_id in self._locations:
            raise ValueError(
                f"{row.location}: the id {document_id!r} is also that of {self._locations[document_id]}; ids must "
                "differ within a split."
            )
        self._locations[document_id] = row.location


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

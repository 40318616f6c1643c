"""A classification task from your documents: files, or a data set of the hub, with named columns.

`read_rows` says which files can be read, one or more per split. Labels are names or whole numbers. A document has
one, or any number of them: a list in the label column, or, with a separator, a text such as "law;tax". The task has
the labels of the training set. Without dev or test files, the dev or test set is empty; `select_documents` splits a
dev set off for runs that need one.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from prefixprop.data.cache import Writer, in_memory, stored
from prefixprop.data.documents import (
    SPLIT_NAMES,
    ClassificationTask,
    Document,
    Label,
    SplitWriter,
    StoredDocuments,
)
from prefixprop.data.rows import (
    FileRows,
    Row,
    add_id,
    default_id_column,
    described,
    find_split_files,
    read_rows,
    text_of,
    value_of,
)
from prefixprop.lazy_imports import import_optional

_LABELS_NAMED_IN_ERRORS = 30
_WHOLE_NUMBER = re.compile(r"^(-?\d+)\.0$")
# What the hub's data sets call the splits of this package, the usual name first.
_HUB_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "valid", "val"), "test": ("test",)}
_SECRET = -1  # how the hub marks the labels of a benchmark's secret test set

Paths = Sequence[str | Path]


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are read.

    Attributes:
        text: The document.
        label: Its label, a name or a number, or a list of labels.
        id: What the document is called in predictions; None: "id" if there is such a column.
        label_name: The name of the label, which is then used instead; a table may lack this column.
        label_names: The names of the labels, where the labels are numbers from 0.
        separator: What separates the labels of a document, if they are one text; then it can have several.
        max_characters: How many characters of a text are read; None: all of them.
    """

    text: str = "text"
    label: str = "label"
    id: str | None = None
    label_name: str | None = None
    label_names: tuple[str, ...] | None = None
    separator: str | None = None
    max_characters: int | None = None


def load_files(
    train: Paths,
    dev: Paths = (),
    test: Paths = (),
    *,
    name: str = "files",
    text_column: str = "text",
    label_column: str = "label",
    id_column: str | None = None,
    label_separator: str | None = None,
) -> ClassificationTask:
    """Load a task from files or folders; without `id_column`, ids are those of the column "id", or numbers.

    >>> task = load_files(["letters.csv"], text_column="body", label_column="department")
    """
    paths = {"train": train, "dev": dev, "test": test}
    for split, given in paths.items():
        if isinstance(given, str | Path):
            raise TypeError(f"{split} must be a list of files, got {given!r}; write [{str(given)!r}].")
    if not train:
        raise ValueError("Give at least one file of training documents.")
    splits: dict[Path, str] = {}
    for split, given in paths.items():
        for path in given:
            known = splits.setdefault(Path(path).resolve(), split)
            if known != split:
                raise ValueError(f"{path}: given for both {known} and {split}; give a file for one of them.")
    columns = Columns(text=text_column, label=label_column, id=id_column, separator=label_separator)
    return build_task(name, {split: read_rows(given) for split, given in paths.items() if given}, columns)


def load_hub(
    dataset: str,
    config: str | None = None,
    *,
    text_column: str = "text",
    label_column: str = "label",
    id_column: str | None = None,
    label_separator: str | None = None,
) -> ClassificationTask:
    """Load a task from a data set of the Hugging Face hub; needs the package `datasets`.

    >>> task = load_hub("ccdv/patent-classification", "abstract")
    """
    columns = Columns(text=text_column, label=label_column, id=id_column, separator=label_separator)
    return load_hub_task(dataset, dataset, config, columns, instead="download its files and give those")


def load_folder(name: str, folder: Path | None, columns: Columns, must_hold: str) -> ClassificationTask:
    """Load a task from the files train, dev (or validation) and, if it exists, test of a folder.

    `must_hold` tells the user what belongs in the folder if train or dev is missing.
    """
    files = {
        "train": find_split_files(folder, "train", must_hold=must_hold),
        "dev": find_split_files(folder, "dev", "validation", must_hold=must_hold),
        "test": find_split_files(folder, "test"),
    }
    return build_task(name, {split: read_rows(paths) for split, paths in files.items() if paths}, columns)


def load_hub_task(name: str, dataset: str, config: str | None, columns: Columns, instead: str) -> ClassificationTask:
    """Load a task from the hub, or from the cache of an earlier download; `instead` is what to do if that fails.

    Label numbers become names where the hub has names for them. A test set with secret labels is left out.
    """
    datasets = import_optional("datasets", "Data sets of the hub")
    full_name = dataset if config is None else f"{dataset} ({config})"
    try:
        loaded = datasets.load_dataset(dataset, config)
    except Exception as error:  # the library lets every error of the network, the hub and the data through
        reason = str(error).strip().splitlines() or [""]
        raise ConnectionError(
            f"The data set {full_name} cannot be loaded from the hub ({type(error).__name__}: {reason[0]}). Check "
            f"its name and the network, or {instead}."
        ) from error

    splits: dict[str, Iterator[Row]] = {}
    remarks: tuple[str, ...] = ()
    for split_name, hub_names in _HUB_SPLITS.items():
        hub_name = next((hub_name for hub_name in hub_names if hub_name in loaded), None)
        if hub_name is None:
            continue
        table = loaded[hub_name]
        feature = table.features.get(columns.label)
        feature = getattr(feature, "feature", feature)  # of a list
        if isinstance(feature, datasets.ClassLabel):
            if split_name == "test" and len(table) and all(label == _SECRET for label in table[columns.label]):
                remarks += (f"the labels of the test set of {full_name} are secret, so it is left out",)
                continue
            columns = replace(columns, label_names=tuple(feature.names))
        splits[split_name] = _rows(table, f"{full_name}, {hub_name}")
    if "train" not in splits:
        raise ValueError(f"The data set {full_name} has no split 'train'; its splits are {', '.join(loaded)}.")
    return build_task(name, splits, columns, remarks)


def _rows(table: Any, location: str) -> Iterator[Row]:
    for number, record in enumerate(table, start=1):
        yield Row(f"{location}, row {number}", record)


def build_task(
    name: str, splits: Mapping[str, Iterable[Row]], columns: Columns, remarks: tuple[str, ...] = ()
) -> ClassificationTask:
    """Make a task of the rows of its splits: "train", and "dev" and "test" if there are any.

    The labels are those of the training set, sorted as numbers if all of them are numbers, by name otherwise.

    Rows of files are read once and kept in the cache; a later call does not parse them again.
    """

    def fill(writer: Writer) -> None:
        several: bool | None = None  # the first row decides
        for split in (name for name in SPLIT_NAMES if name in splits):
            documents = SplitWriter(writer, split)
            ids, rows, several = _read_rows(splits[split], columns, documents.add_text, several)
            if split == "train":  # comes first
                writer.facts["label_names"] = _label_names(rows, columns, bool(several))
                writer.facts["several_labels"] = bool(several)
            names = writer.facts["label_names"]
            documents.finish(ids, _indices(rows, names, "is not in the training set", bool(several)))

    digests = {split: rows.digest() for split, rows in sorted(splits.items()) if isinstance(rows, FileRows)}
    if len(digests) < len(splits):
        entry = in_memory(fill)
    else:
        code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
        entry = stored("documents", f"{digests} {columns} {code.hexdigest()}", fill)
    documents = {split: StoredDocuments.of(entry, split) for split in splits}
    nothing = documents["train"][:0]
    train, dev, test = (documents.get(split, nothing) for split in SPLIT_NAMES)
    names, several = tuple(entry.facts["label_names"]), entry.facts["several_labels"]
    return ClassificationTask(name, names, train, dev, test, remarks, several_labels=several)


def _read_rows(
    rows: Iterable[Row], columns: Columns, add_text: Callable[[str], None], several: bool | None
) -> tuple[list[str], list[_LabelledRow], bool | None]:
    """Pass on every text, and return ids and labels, which are only known when all rows have been read.

    `several` says whether a document can have several labels; if it is None, the first row does.
    """
    id_column = columns.id
    ids: dict[str, str] = {}  # with their locations
    labelled: list[_LabelledRow] = []
    for row in rows:
        if not labelled and columns.id is None:
            id_column = default_id_column(row)
        if id_column is not None:
            try:
                add_id(ids, row, id_column)
            except ValueError:
                if columns.id is not None:
                    raise
                id_column = None  # the user did not say that it has an id for every document
        add_text(text_of(row, columns.text)[: columns.max_characters])
        if several is None:
            several = columns.separator is not None or isinstance(value_of(row, columns.label), list)
        labelled.append(_LabelledRow(row.location, tuple(map(sys.intern, _labels(row, columns, several)))))
    numbers = map(str, range(1, len(labelled) + 1))
    return list(numbers if id_column is None else ids), labelled, several


def label_documents(
    rows: Iterable[Row],
    columns: Columns,
    label_names: Sequence[str],
    prepare: Callable[[str], str] = str,
    several_labels: bool = False,
) -> StoredDocuments:
    """Make documents of rows; a label that is not one of `label_names`, such as a model's labels, is refused.

    `prepare` is applied to every text.
    """
    texts: list[str] = []
    ids, labelled, _ = _read_rows(rows, columns, lambda text: texts.append(prepare(text)), several_labels)
    labels = _indices(labelled, label_names, "is unknown", several_labels)
    return StoredDocuments.packed(list(map(Document, ids, texts, labels)))


class _LabelledRow(NamedTuple):
    location: str
    labels: tuple[str, ...]


def _label_names(train: list[_LabelledRow], columns: Columns, several: bool) -> list[str]:
    """The labels of the training set: in the order of the hub, as numbers if all of them are, or by name."""
    found = {label for row in train for label in row.labels}
    if not train:
        raise ValueError("There are no training documents.")
    if not found:
        raise ValueError(f"{train[0].location}: neither this nor any other training document has a label.")
    if len(found) < 2:
        raise ValueError(
            f"{train[0].location}: this and all of the {len(train):,} training documents have the label "
            f"{next(iter(found))!r}{' or none' if several else ''}; a classifier needs at least two labels to learn"
            + (". Instead of lists, give each document one of two labels, such as yes and no." if several else ".")
        )
    if columns.label_names is not None:
        return [name for name in columns.label_names if name in found]
    try:
        numbers = {name: float(name) for name in found}
    except ValueError:
        return sorted(found)
    if not all(map(math.isfinite, numbers.values())):
        return sorted(found)
    names = sorted(found, key=lambda name: (numbers[name], name))
    if fractions := [name for name in names if not numbers[name].is_integer()]:
        where = next(row.location for row in train if fractions[0] in row.labels)
        raise ValueError(
            f"{where}: the label {fractions[0]} is a quantity, and this package learns classes, not regression; if "
            f"these are classes, give them names, such as 'v{fractions[0]}'."
        )
    return names


def _indices(rows: list[_LabelledRow], names: Sequence[str], problem: str, several: bool) -> list[Label]:
    indices = {name: index for index, name in enumerate(names)}
    for location, labels in rows:
        if unknown := [label for label in labels if label not in indices]:
            listed = ", ".join(names[:_LABELS_NAMED_IN_ERRORS])
            more = len(names) - _LABELS_NAMED_IN_ERRORS
            rest = f" and {more} more" if more > 0 else ""
            raise ValueError(f"{location}: the label {unknown[0]!r} {problem}; the labels are {listed}{rest}.")
    if several:
        return [tuple(sorted({indices[label] for label in row.labels})) for row in rows]
    return [indices[row.labels[0]] for row in rows]


def _labels(row: Row, columns: Columns, several: bool) -> Iterator[str]:
    """The names of a row's labels: one, or any number if documents can have several."""
    value, subject = value_of(row, columns.label), f"{row.location}: the label (column {columns.label!r})"
    if several and columns.separator is not None and isinstance(value, str | None):
        value = [part for part in (value or "").split(columns.separator) if part.strip()]
    if isinstance(value, list) and not several:
        raise ValueError(f"{subject} is a list, and the rows before have one label each; write lists in every row.")
    if several and not isinstance(value, list):
        raise ValueError(
            f"{subject} must be a list, as in the rows before, [] without labels; got {described(value)}."
        )
    if not several:
        if columns.label_name is not None and row.values.get(columns.label_name) is not None:
            value = row.values[columns.label_name]
        value = [value]
    for label in value:
        yield _label(label, columns, subject)


def _label(value: Any, columns: Columns, subject: str) -> str:
    if columns.label_names is not None:
        if not (isinstance(value, int) and 0 <= value < len(columns.label_names)):
            raise ValueError(f"{subject} must be a number from 0 to {len(columns.label_names) - 1}, got {value!r}.")
        return columns.label_names[value]
    no_number = isinstance(value, float) and math.isnan(value)
    if value is None or no_number or (isinstance(value, str) and not value.strip()):
        raise ValueError(f"{subject} is missing; every document needs one.")
    if not isinstance(value, str | int | float):
        raise ValueError(f"{subject} must be a name or a number, got {described(value)}.")
    # Tables with gaps store whole numbers as 1.0.
    return _WHOLE_NUMBER.sub(r"\1", str(value).strip())

"""A classification task of your own: from files, or from a data set of the hub, with named columns.

Files are JSON lines (`.jsonl`, `.jsonl.gz`, `.jsonl.xz`), CSV, TSV or Parquet, one or more per split. Labels are
names or numbers. The task has the labels that occur in train. Without dev, a tenth of train becomes dev, stratified
by label and drawn with a fixed seed; without test, the test of the task is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefixprop.data.documents import ClassificationTask
from prefixprop.data.labelled_rows import Columns, build_task
from prefixprop.data.rows import Row, check_folder, find_split_files, read_rows
from prefixprop.optional_packages import import_optional

# What the hub's data sets call the splits of this package, the usual name first.
_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "valid", "val"), "test": ("test",)}
_SECRET = -1  # how the hub marks the labels of a benchmark's secret test


@dataclass(frozen=True)
class HubDataset:
    """A data set of the hub: the rows of its splits, the columns to read, and remarks for the user."""

    splits: dict[str, Iterator[Row]]
    columns: Columns
    remarks: tuple[str, ...] = ()


def load_hub_dataset(name: str, config: str | None, columns: Columns, instead: str) -> HubDataset:
    """Load a data set of the hub, or from the cache of an earlier download; `instead` says what to do if that fails.

    Label numbers become names where the hub has names for them. A test split with secret labels is left out.
    """
    datasets = import_optional("datasets", "Data sets of the hub")
    full_name = name if config is None else f"{name} ({config})"
    try:
        loaded = datasets.load_dataset(name, config)
    except Exception as error:  # the library lets every error of the network, the hub and the data through
        reason = str(error).strip().splitlines() or [""]
        raise ConnectionError(
            f"The data set {full_name} cannot be loaded from the hub ({type(error).__name__}: {reason[0]}). Check "
            f"its name and the network, or {instead}."
        ) from error

    splits: dict[str, Iterator[Row]] = {}
    remarks: tuple[str, ...] = ()
    for split_name, hub_names in _SPLITS.items():
        hub_name = next((hub_name for hub_name in hub_names if hub_name in loaded), None)
        if hub_name is None:
            continue
        table = loaded[hub_name]
        feature = table.features.get(columns.label)
        if isinstance(feature, datasets.ClassLabel):
            if split_name == "test" and set(table[columns.label]) == {_SECRET}:
                remarks += (f"the labels of the test of {full_name} are secret: there is no test",)
                continue
            columns = replace(columns, label_names=tuple(feature.names))
        splits[split_name] = _rows(table, f"{full_name}, {hub_name}")
    if "train" not in splits:
        raise ValueError(f"The data set {full_name} has no split 'train'; its splits are {', '.join(loaded)}.")
    return HubDataset(splits, columns, remarks)


def _rows(table: Any, location: str) -> Iterator[Row]:
    for number, record in enumerate(table, start=1):
        yield Row(f"{location}, row {number}", record)


Paths = Sequence[str | Path]


def load_files(
    train: Paths,
    dev: Paths = (),
    test: Paths = (),
    *,
    name: str = "files",
    text_column: str = "text",
    label_column: str = "label",
    id_column: str | None = None,
) -> ClassificationTask:
    """Load a task from files; without `id_column`, ids are those of the column "id", or numbers within the split.

    >>> task = load_files(["letters.csv"], text_column="body", label_column="department")
    """
    paths = {"train": train, "dev": dev, "test": test}
    for split, given in paths.items():
        if isinstance(given, str | Path):
            raise TypeError(f"{split} must be a list of files, got {given!r}; write [{str(given)!r}].")
    if not train:
        raise ValueError("Give at least one file of train documents.")
    _check_given_once(paths)
    columns = Columns(text=text_column, label=label_column, id=id_column)
    return build_task(name, {split: read_rows(given) for split, given in paths.items() if given}, columns)


def load_hub(
    dataset: str,
    config: str | None = None,
    *,
    text_column: str = "text",
    label_column: str = "label",
    id_column: str | None = None,
) -> ClassificationTask:
    """Load a task from a data set of the Hugging Face hub; needs the package `datasets`.

    >>> task = load_hub("ccdv/patent-classification", "abstract")
    """
    columns = Columns(text=text_column, label=label_column, id=id_column)
    hub = load_hub_dataset(dataset, config, columns, instead="download its files and give those")
    return build_task(dataset, hub.splits, hub.columns, remarks=hub.remarks)


def load_folder(
    name: str, folder: Path, columns: Columns, must_hold: str, prepare: Callable[[str], str] = str
) -> ClassificationTask:
    """Load a task from the files train, dev (or validation) and, if it is there, test of a folder.

    `must_hold` tells the user what belongs into the folder if train or dev is missing.
    """
    check_folder(folder)
    files = {
        "train": find_split_files(folder, "train"),
        "dev": find_split_files(folder, "dev", "validation"),
        "test": find_split_files(folder, "test"),
    }
    for split in ("train", "dev"):
        if not files[split]:
            raise FileNotFoundError(f"{folder}: there is no {split}. The folder must hold {must_hold}.")
    return build_task(name, {split: read_rows(paths) for split, paths in files.items() if paths}, columns, prepare)


def _check_given_once(paths: dict[str, Paths]) -> None:
    splits: dict[Path, str] = {}
    for split, given in paths.items():
        for path in given:
            known = splits.setdefault(Path(path).resolve(), split)
            if known != split:
                raise ValueError(f"{path}: the file is given for both {known} and {split}; a document has one split.")

"""A classification task of your own: from files, or from a data set of the hub, with named columns.

Files are JSON lines (`.jsonl`, `.jsonl.gz`), CSV, TSV or Parquet, one or more per split. Labels are names or numbers.
The labels of train are the labels there are. Without dev, a tenth of train, drawn alike from every label with a fixed
seed, becomes dev; without test, the test of the task is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefixprop.tasks.documents import ClassificationTask
from prefixprop.tasks.hub import load_hub_dataset
from prefixprop.tasks.labelled_rows import Columns, build_task
from prefixprop.tasks.rows import read_rows

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


def _check_given_once(paths: dict[str, Paths]) -> None:
    splits: dict[Path, str] = {}
    for split, given in paths.items():
        for path in given:
            known = splits.setdefault(Path(path).resolve(), split)
            if known != split:
                raise ValueError(f"{path}: the file is given for both {known} and {split}; a document has one split.")

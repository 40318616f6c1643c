"""CUAD (Hendrycks et al., 2021): commercial contracts, and which clauses each of them has.

The Contract Understanding Atticus Dataset v1, by The Atticus Project, CC BY 4.0: 510 contracts that companies filed
with the SEC, each with a yes or no for 33 kinds of clauses. `recipes/build_cuad.py` makes the task's file from it.
There is no split: runs are compared on folds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from prefixprop.data.documents import ClassificationTask
from prefixprop.data.files import Columns, build_task
from prefixprop.data.rows import check_folder, find_split_files, read_rows

RAREST = 0.05  # of the contracts have a clause, or it is left out: with five folds, one would have four contracts

_FOLDER_MUST_HOLD = "contracts.jsonl.xz; the site says how to build it (Several labels)"


def load_cuad(data_dir: Path | None = None) -> ClassificationTask:
    """Load the contracts of a folder, all as the training set, and the clauses that are not too rare."""
    if data_dir is None:
        raise ValueError(f"The contracts of CUAD have to be built: pass --data-dir FOLDER with {_FOLDER_MUST_HOLD}.")
    check_folder(data_dir)
    files = find_split_files(data_dir, "contracts")
    if not files:
        raise FileNotFoundError(f"{data_dir}: there are no contracts. The folder must hold {_FOLDER_MUST_HOLD}.")
    rows = [row for row in read_rows(files) if isinstance(row.values.get("labels"), list)]
    counts = Counter(label for row in rows for label in row.values["labels"])
    kept = {label for label, count in counts.items() if count >= RAREST * len(rows)}
    rows = [
        replace(row, values={**row.values, "labels": [label for label in row.values["labels"] if label in kept]})
        for row in rows
    ]
    return build_task("cuad", {"train": rows}, Columns(label="labels", id="id"))

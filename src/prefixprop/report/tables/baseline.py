"""The row of the linear model that runs are compared with: below the others, and no part of their contest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from prefixprop.report.tables.measures import Measure
from prefixprop.report.tables.table import ABSENT, Cell, Column, Table, number_cell
from prefixprop.runs.run import Run

TFIDF = "TF-IDF (linear)"
_NOTE = (
    f"{TFIDF}: a linear model of the words of whole documents, fitted on the training documents of the runs. "
    "It takes no part in marks, choices and tests."
)


def with_baseline(table: Table, runs: Iterable[Run], split: str, measures: Sequence[Measure]) -> Table:
    """The table with a row of the TF-IDF baseline for each number of training documents, where runs have one."""
    by_train: dict[int | None, list[Run]] = {}
    for run in runs:
        if any(run.baseline(split, measure.name) is not None for measure in measures):
            by_train.setdefault(run.settings.max_train_documents, []).append(run)
    columns = list(table.columns)
    for count, together in by_train.items():
        of = f", max train documents {count}" if count is not None and len(by_train) > 1 else ""
        cells = {measure.title: _cell(together, split, measure) for measure in measures}
        columns = [_extended(column, Cell(TFIDF + of), cells) for column in columns]
    return replace(table, columns=columns, notes=(*table.notes, _NOTE) if by_train else table.notes)


def _extended(column: Column, name: Cell, cells: dict[str, Cell]) -> Column:
    cell = name if column.title == "Method" else cells.get(column.title, ABSENT)
    return replace(column, cells=[*column.cells, ABSENT if column.from_paper else cell])


def _cell(runs: Sequence[Run], split: str, measure: Measure) -> Cell:
    """Its mean over folds and samples of the training set; runs on the same documents have the same baseline."""
    found = {(run.settings.fold, run.settings.seed): run.baseline(split, measure.name) for run in runs}
    values = [value for value in found.values() if value is not None]
    same = len(set(values)) == 1
    return replace(number_cell(values[:1] if same else values, measure.decimals, measure.scale), detail="")

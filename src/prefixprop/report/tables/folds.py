"""Tables of cross-validations: what every setting got on the left-out folds of train.

Such numbers choose learning rates, and compare settings where no results are wanted (an ablation). Where rows of a
method differ in more than what is searched, they are compared with the row of the default settings, pairwise by fold
and seed, because a hard fold is hard for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.evaluate.significance import summarise_seeds
from prefixprop.report.choose.comparisons import Comparison, Trial, protocol_title, trials_of
from prefixprop.report.choose.method_rows import MethodRow, data_key, method_rows, row_key, searched_values
from prefixprop.report.file_names import file_name
from prefixprop.report.tables.baseline import with_baseline
from prefixprop.report.tables.circumstances import differing_circumstances
from prefixprop.report.tables.measures import ECE, headline
from prefixprop.report.tables.table import (
    ABSENT,
    Cell,
    Column,
    Mark,
    Table,
    name_columns,
    plain_cell,
    setting_cell,
    without_empty,
)
from prefixprop.runs.run import Run

_NO_RESULTS = "These numbers serve to choose and to compare settings; they are not results."
_CHOSEN = (
    "Bold: the chosen values of a method or, without runs on all of train, the best of those with the most runs."
)
_DIFFERENCE = (
    "Difference: to the default settings of the same method, marked as reference; the mean over runs of the same "
    "fold and seed, with the 95 % interval of a paired t. Folds share training documents, so the intervals are too "
    "narrow."
)

_FOLD = "Cross-validation on train"
_DIFFERENCE_TITLE = "Difference, points (95 % interval)"


@dataclass(frozen=True)
class _Row:
    """A row of the table: runs on folds that have all but the fold and the seed in common."""

    method_row: MethodRow
    trial: Trial
    is_chosen: bool

    @property
    def scores(self) -> dict[tuple[int | None, int], float]:
        """The measure that the task is judged by, in percent, by fold and seed."""
        metric = self.trial.settings.metric
        found = {(run.settings.fold, run.settings.seed): run.metric("dev", metric) for run in self.trial.runs}
        return {pairing: 100 * score for pairing, score in found.items() if score is not None}


def fold_tables(runs: Iterable[Run], comparisons: Sequence[Comparison] = ()) -> list[Table]:
    """A table of every cross-validation among the runs, which may have others too.

    `comparisons` have the results that were run at the chosen values, and so show which these are.
    """
    together: dict[Any, list[Run]] = {}
    for run in runs:
        if run.settings.fold is not None:
            together.setdefault((data_key(run), run.settings.folds, run.settings.keep), []).append(run)
    chosen = {
        row_key(contender.best.runs[0]): searched_values(contender.best.settings)
        for comparison in comparisons
        for contender in comparison.contenders
    }
    has_results = {comparison.title for comparison in comparisons}
    found = sorted(together.values(), key=lambda runs: (protocol_title(runs[0].settings), runs[0].settings.folds))
    titles = [protocol_title(runs[0].settings) for runs in found]
    tables = []
    for number, (runs_on_folds, title) in enumerate(zip(found, titles, strict=True), start=1):
        folds = f" ({runs_on_folds[0].settings.folds} folds)" if titles.count(title) > 1 else ""
        table = _table(runs_on_folds, chosen, number, f"{title}{folds}: cross-validation on train")
        tables.append(replace(table, section=title, fold=_FOLD if title in has_results else ""))
    return tables


def _table(runs: Sequence[Run], chosen: dict[Any, Any], number: int, title: str) -> Table:
    rows = [
        row
        for method_row in sorted(method_rows(runs), key=_order_of_method_rows)
        for row in sorted(_rows(method_row, chosen), key=_order_of_rows)
    ]
    trials = [row.trial for row in rows]
    settings = trials[0].settings
    searched = [searched_values(trial.settings) for trial in trials]
    columns = without_empty(
        [
            *name_columns([row.method_row.name for row in rows], [row.method_row.model for row in rows]),
            Column("Learning rate", [setting_cell(rate) for rate, _ in searched]),
            Column("Alpha", [setting_cell(alpha) for _, alpha in searched]),
            _with_chosen_bold(_without_details(headline(settings.metric).column(trials, "dev")), rows),
            Column(_DIFFERENCE_TITLE, _differences(rows)),
            _without_details(ECE.column(trials, "dev")),
            Column("Runs", [plain_cell(len(trial.runs), 0) for trial in trials]),
        ]
    )
    has_differences = any(column.title == _DIFFERENCE_TITLE for column in columns)
    name = f"cross-validation-{number}-{file_name(settings.data_name)}"
    table = Table(name, title, columns, _notes(rows, runs, has_differences))
    return with_baseline(table, runs, "dev", (headline(settings.metric), ECE))


def _without_details(column: Column) -> Column:
    """The details would be intervals over seeds, which runs on folds are not."""
    return replace(column, cells=[replace(cell, detail="") for cell in column.cells])


def _with_chosen_bold(column: Column, rows: Sequence[_Row]) -> Column:
    marks = [Mark.BOLD if row.is_chosen else Mark.NONE for row in rows]
    return replace(column, cells=[replace(cell, mark=mark) for cell, mark in zip(column.cells, marks, strict=True)])


def _rows(method_row: MethodRow, chosen: dict[Any, Any]) -> list[_Row]:
    trials = trials_of(method_row.runs)
    values = chosen.get(row_key(method_row.runs[0]), searched_values(trials[0].settings))
    return [
        _Row(method_row, trial, is_chosen=len(trials) > 1 and searched_values(trial.settings) == values)
        for trial in trials
    ]


def _order_of_method_rows(row: MethodRow) -> Any:
    """By model and method, the default settings first, then numbers by their size."""
    own = [(name, *_size(value), str(value)) for name, value in row.own]
    return row.model, row.method, len(own), own


def _order_of_rows(row: _Row) -> Any:
    return [_size(value) for value in searched_values(row.trial.settings)]


def _size(value: Any) -> tuple[bool, float]:
    is_number = isinstance(value, int | float)
    return is_number, float(value) if is_number else 0.0


def _differences(rows: Sequence[_Row]) -> list[Cell]:
    """Every row against the default settings of its method, where the method has other settings too."""
    by_method: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        by_method.setdefault((row.method_row.model, row.method_row.method), []).append(row)
    cells = []
    for row in rows:
        same_method = by_method[row.method_row.model, row.method_row.method]
        reference = _reference(same_method) if any(other.method_row.own for other in same_method) else None
        cells.append(ABSENT if reference is None else _difference_cell(row, reference))
    return cells


def _reference(same_method: Sequence[_Row]) -> _Row | None:
    """The default settings at the chosen values, if they were run."""
    default = [row for row in same_method if not row.method_row.own]
    chosen = [row for row in default if row.is_chosen]
    return next(iter(chosen or default), None)


def _difference_cell(row: _Row, reference: _Row) -> Cell:
    if row is reference:
        return Cell("reference", 0.0)
    mine, theirs = row.scores, reference.scores
    differences = [mine[pairing] - theirs[pairing] for pairing in mine if pairing in theirs]
    if not differences:
        return ABSENT
    summary = summarise_seeds(differences)
    if summary.interval is None:
        return Cell(f"{summary.mean:+.1f}", summary.mean, detail="one pair")
    low, high = summary.interval
    return Cell(f"{summary.mean:+.1f} ({low:+.1f} to {high:+.1f})", summary.mean, detail=f"{summary.count} pairs")


def _notes(rows: Sequence[_Row], runs: Sequence[Run], has_differences: bool) -> list[str]:
    settings = runs[0].settings
    seeds = sorted({run.settings.seed for run in runs})
    listed = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    notes = [
        f"{settings.folds} folds of train, {listed}: every run leaves one fold out of its training and is judged on "
        f"it; mean ± standard deviation over the runs. {differing_circumstances(runs)}".rstrip(),
        _NO_RESULTS,
    ]
    if any(row.is_chosen for row in rows):
        notes[-1] += f" {_CHOSEN}"
    if settings.keep != "last":
        notes.append("The epoch of every run is the best on the fold it is judged on, so its number is optimistic.")
    counts = [len(row.trial.runs) for row in rows]
    if min(counts) < max(counts):
        notes.append(f"Rows with fewer than {max(counts)} runs lack folds or seeds that others have.")
    if has_differences:
        notes.append(_DIFFERENCE)
    if len({row.method_row.model for row in rows}) == 1:
        notes.append(f"Model: {rows[0].method_row.model}.")
    return notes

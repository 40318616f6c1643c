"""Tables of cross-validations: what every candidate got on the left-out folds of train.

Such numbers choose learning rates, and compare settings where no results are wanted (an ablation). Where rows of a
method differ in more than what is searched, they are compared with the row of the default settings, pairwise by fold
and seed, because a hard fold is hard for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.evaluation.significance import summarise_seeds
from prefixprop.reporting.choose.comparisons import Comparison, Trial, trials_of
from prefixprop.reporting.choose.method_rows import MethodRow, method_rows, row_key, searched_values
from prefixprop.reporting.choose.protocol import is_on_fold, keeps_last_epoch, protocol_title
from prefixprop.reporting.file_names import file_name
from prefixprop.reporting.tables.measures import ECE, headline
from prefixprop.reporting.tables.table import (
    ABSENT,
    Better,
    Cell,
    Column,
    Filled,
    Place,
    Table,
    name_columns,
    plain_cell,
    setting_cell,
    table_of_columns,
)
from prefixprop.runs.run import Run
from prefixprop.settings.run_settings import RunSettings

_NO_RESULTS = "These numbers serve to choose and to compare settings; they are no results."
_CHOSEN = "Bold: the chosen values of a method; without runs on all of train, the best of those with the most runs."
_DIFFERENCE = (
    "Difference: to the default settings of the same method, marked as reference; the mean over runs of the same "
    "fold and seed, with the 95 % interval of a paired t. Folds share training documents, so the intervals are too "
    "narrow."
)

# What a run on a fold is paired by.
_Place = tuple[int | None, int]


@dataclass(frozen=True)
class _Candidate:
    """A row of the table: runs on folds that have all but the fold and the seed in common."""

    row: MethodRow
    trial: Trial
    is_chosen: bool

    @property
    def scores(self) -> dict[_Place, float]:
        """The measure that the task is judged by, in percent, by fold and seed."""
        metric = self.trial.settings.metric
        found = {(run.settings.fold, run.settings.seed): run.measure("dev", metric) for run in self.trial.runs}
        return {place: 100 * score for place, score in found.items() if score is not None}


def fold_tables(runs: Iterable[Run], comparisons: Sequence[Comparison] = ()) -> list[Table]:
    """A table of every cross-validation among the runs, which may have others too.

    `comparisons` have the results that were run at the chosen values, and so tell which these are.
    """
    together: dict[Any, list[Run]] = {}
    for run in runs:
        if is_on_fold(run.settings):
            together.setdefault(_cross_validation(run), []).append(run)
    chosen = {
        row_key(contender.best.runs[0]): searched_values(contender.best.settings)
        for comparison in comparisons
        for contender in comparison.contenders
    }
    found = sorted(together.values(), key=lambda runs: _order_of_tables(runs[0].settings))
    titles = [_title(runs[0], with_folds=False) for runs in found]
    return [
        _table(runs, chosen, number, _title(runs[0], with_folds=titles.count(title) > 1))
        for number, (runs, title) in enumerate(zip(found, titles, strict=True), start=1)
    ]


def _cross_validation(run: Run) -> Any:
    """What runs have in common that were judged on the same folds by the same protocol."""
    settings = run.settings
    data = settings.data_name, settings.hub_config, run.names_of_files, run.fingerprint_of_files, run.labels
    return (*data, settings.folds, keeps_last_epoch(settings))


def _title(run: Run, with_folds: bool) -> str:
    folds = f" ({run.settings.folds} folds)" if with_folds else ""
    return f"{protocol_title(run.settings)}{folds}: cross-validation on train"


def _order_of_tables(settings: RunSettings) -> Any:
    return protocol_title(settings), settings.folds


def _table(runs: Sequence[Run], chosen: dict[Any, Any], number: int, title: str) -> Table:
    candidates = [
        candidate
        for row in sorted(method_rows(runs), key=_order_of_rows)
        for candidate in sorted(_candidates(row, chosen), key=_order_of_candidates)
    ]
    trials = [candidate.trial for candidate in candidates]
    searched = [searched_values(trial.settings) for trial in trials]
    measure = headline(trials[0].settings.metric)
    scores = [_score_cell(candidate) for candidate in candidates]
    errors = [replace(ECE.cell(trial, "dev"), detail="") for trial in trials]
    differences = _differences(candidates)
    models = [candidate.row.model for candidate in candidates]

    columns = name_columns([candidate.row.name for candidate in candidates], models)
    columns.append((Column("Learning rate"), [setting_cell(rate) for rate, _ in searched]))
    if any(alpha is not None for _, alpha in searched):
        columns.append((Column("Alpha"), [setting_cell(alpha) for _, alpha in searched]))
    columns.append((Column(measure.title, measure.better), scores))
    if any(cell != ABSENT for cell in differences):
        columns.append((Column("Difference, points (95 % interval)"), differences))
    columns.append((Column(ECE.title, Better.LOWER), errors))
    columns.append((Column("Runs"), [plain_cell(len(trial.runs), 0) for trial in trials]))
    notes = _notes(candidates, columns, runs)
    name = f"cross-validation-{number}-{file_name(trials[0].settings.data_name)}"
    return table_of_columns(name, title, columns, notes)


def _candidates(row: MethodRow, chosen: dict[Any, Any]) -> list[_Candidate]:
    trials = trials_of(row.runs)
    values = chosen.get(row_key(row.runs[0]), searched_values(trials[0].settings))
    return [
        _Candidate(row, trial, is_chosen=len(trials) > 1 and searched_values(trial.settings) == values)
        for trial in trials
    ]


def _order_of_rows(row: MethodRow) -> Any:
    """By model and method, the default settings first, then numbers by their size."""
    own = [(name, *_size(value), str(value)) for name, value in row.own]
    return row.model, row.method, len(own), own


def _order_of_candidates(candidate: _Candidate) -> Any:
    return [_size(value) for value in searched_values(candidate.trial.settings)]


def _size(value: Any) -> tuple[bool, float]:
    is_number = isinstance(value, int | float)
    return is_number, float(value) if is_number else 0.0


def _score_cell(candidate: _Candidate) -> Cell:
    settings = candidate.trial.settings
    cell = headline(settings.metric).cell(candidate.trial, "dev")
    # The detail would be an interval over seeds, which runs on folds are not.
    return replace(cell, detail="", place=Place.FIRST if candidate.is_chosen else Place.OTHER)


def _differences(candidates: Sequence[_Candidate]) -> list[Cell]:
    """Every candidate against the default settings of its method, where the method has other settings too."""
    by_method: dict[tuple[str, str], list[_Candidate]] = {}
    for candidate in candidates:
        by_method.setdefault((candidate.row.model, candidate.row.method), []).append(candidate)
    cells = []
    for candidate in candidates:
        same_method = by_method[candidate.row.model, candidate.row.method]
        reference = _reference(same_method) if any(other.row.own for other in same_method) else None
        cells.append(ABSENT if reference is None else _difference_cell(candidate, reference))
    return cells


def _reference(same_method: Sequence[_Candidate]) -> _Candidate | None:
    """The default settings at the chosen values, if they were run."""
    default = [candidate for candidate in same_method if not candidate.row.own]
    chosen = [candidate for candidate in default if candidate.is_chosen]
    return next(iter(chosen or default), None)


def _difference_cell(candidate: _Candidate, reference: _Candidate) -> Cell:
    if candidate is reference:
        return Cell("reference", 0.0)
    mine, theirs = candidate.scores, reference.scores
    differences = [mine[place] - theirs[place] for place in mine if place in theirs]
    if not differences:
        return ABSENT
    summary = summarise_seeds(differences)
    if summary.interval is None:
        return Cell(f"{summary.mean:+.1f}", summary.mean, detail="one pair")
    low, high = summary.interval
    return Cell(f"{summary.mean:+.1f} ({low:+.1f} to {high:+.1f})", summary.mean, detail=f"{summary.count} pairs")


def _notes(candidates: Sequence[_Candidate], columns: Sequence[Filled], runs: Sequence[Run]) -> list[str]:
    settings = runs[0].settings
    seeds = sorted({run.settings.seed for run in runs})
    listed = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    notes = [
        f"{settings.folds} folds of train, {listed}: every run leaves one fold out of its training and is judged on "
        "it; mean ± standard deviation over the runs.",
        _NO_RESULTS,
    ]
    if any(candidate.is_chosen for candidate in candidates):
        notes[-1] += f" {_CHOSEN}"
    if not keeps_last_epoch(settings):
        notes.append("The epoch of every run is the best on the fold it is judged on, so its number flatters.")
    counts = [len(candidate.trial.runs) for candidate in candidates]
    if min(counts) < max(counts):
        notes.append(f"Rows of fewer than {max(counts)} runs lack folds or seeds that others have.")
    if any(column.title.startswith("Difference") for column, _ in columns):
        notes.append(_DIFFERENCE)
    if len({candidate.row.model for candidate in candidates}) == 1:
        notes.append(f"Model: {candidates[0].row.model}.")
    return notes

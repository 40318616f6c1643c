"""The tables of a report: quality per task (as Table 2), calibration (as Table 3), significance and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from prefixprop.reporting.choose.comparisons import Comparison, Contender, Trial
from prefixprop.reporting.file_names import file_name
from prefixprop.reporting.tables.measures import CALIBRATION, QUALITY, Measure
from prefixprop.reporting.tables.notes import (
    ONE_SEED,
    TUNED,
    choice_notes,
    has_lone_seeds,
    is_lone_seed,
    paper_notes,
    protocol_notes,
    spread_note,
    tuned_notes,
)
from prefixprop.reporting.tables.paper_values import (
    REPORTED_SPLITS,
    TUNED_PERCENT,
    PaperMethod,
    find_paper_method,
    paper_value,
)
from prefixprop.reporting.tables.significance import significance_tables
from prefixprop.reporting.tables.table import (
    ABSENT,
    Better,
    Cell,
    Column,
    Table,
    name_columns,
    number_cell,
    plain_cell,
    ranked,
    setting_cell,
)
from prefixprop.runs.run import Run, as_number
from prefixprop.settings.methods import BASELINE

_SCALING = "Scaling: by the temperature fitted on dev."


def result_tables(
    comparisons: Sequence[Comparison], with_paper: bool = False, baseline: str = BASELINE
) -> list[Table]:
    """All tables of these comparisons.

    `with_paper` puts the paper's values beside, in columns of their own; `baseline` is the method that the others are
    tested against.
    """
    tables: list[Table] = []
    for number, comparison in enumerate(comparisons, start=1):
        # Two comparisons may share their title, but not the names of their files.
        name = f"{number}-{file_name(comparison.settings.data_name)}"
        for split in comparison.splits:
            tables.append(_main_table(comparison, split, f"{name}-{split}", with_paper))
        tables += significance_tables(comparison, name, baseline)
        for split in comparison.splits:
            tables.append(_calibration_table(comparison, split, f"{name}-{split}-calibration", with_paper))
        tables.append(_time_table(comparison, f"{name}-time"))
    return tables


def _main_table(comparison: Comparison, split: str, name: str, with_paper: bool) -> Table:
    columns, rows = _start(comparison)
    for measure in QUALITY:
        _add_measure(comparison, split, measure, with_paper, columns, rows)
        if measure.name == comparison.settings.metric:
            _add_interval(comparison, split, measure, columns, rows)
    _add_tuned(comparison, split, with_paper, columns, rows)
    rates = [setting_cell(contender.best.settings.learning_rate) for contender in comparison.contenders]
    _add(columns, rows, Column("Learning rate"), rates)
    _add(columns, rows, Column("Seeds"), [_count(contender.best) for contender in comparison.contenders])
    title = f"{comparison.title}, {split}: quality"
    notes = (
        spread_note(comparison, split),
        *protocol_notes(comparison, split),
        *choice_notes(comparison),
        *tuned_notes(columns),
        *paper_notes(comparison, columns),
    )
    return ranked(Table(name, title, tuple(columns), tuple(map(tuple, rows)), notes))


def _calibration_table(comparison: Comparison, split: str, name: str, with_paper: bool) -> Table:
    columns, rows = _start(comparison)
    for measure in CALIBRATION:
        _add_measure(comparison, split, measure, with_paper, columns, rows)
    temperatures = [
        number_cell(_present(as_number(run.metrics.get("temperature")) for run in contender.best.runs), 2)
        for contender in comparison.contenders
    ]
    _add(columns, rows, Column("Temperature"), temperatures)
    title = f"{comparison.title}, {split}: calibration"
    notes = (spread_note(comparison, split), _SCALING, *paper_notes(comparison, columns))
    return ranked(Table(name, title, tuple(columns), tuple(map(tuple, rows)), notes))


def _time_table(comparison: Comparison, name: str) -> Table:
    columns, rows = _start(comparison)
    best = [contender.best for contender in comparison.contenders]
    devices = [", ".join(sorted({run.device for run in trial.runs})) for trial in best]
    _add(columns, rows, Column("Device", is_text=True), [Cell(device) for device in devices])
    seconds = [_present(as_number(run.metrics.get("seconds")) for run in trial.runs) for trial in best]
    _add(columns, rows, Column("Training, s", Better.LOWER), [number_cell(values, 1) for values in seconds])
    per_epoch = [_present(_seconds_per_epoch(run) for run in trial.runs) for trial in best]
    _add(columns, rows, Column("Per epoch, s", Better.LOWER), [number_cell(values, 2) for values in per_epoch])
    _add(columns, rows, Column("Seeds"), [_count(trial) for trial in best])
    notes = ["Time of training with its evaluations on dev, as the runs recorded it."]
    table = Table(name, f"{comparison.title}: training time", tuple(columns), tuple(map(tuple, rows)), tuple(notes))
    # Times of different machines are not a contest.
    return ranked(table) if len(set(devices)) == 1 and devices[0] != "unknown" else table


def _start(comparison: Comparison) -> tuple[list[Column], list[list[Cell]]]:
    contenders = comparison.contenders
    named = name_columns([row.method for row in contenders], [row.model for row in contenders])
    rows = [list(cells) for cells in zip(*(cells for _, cells in named), strict=True)]
    return [column for column, _ in named], rows


def _add(columns: list[Column], rows: list[list[Cell]], column: Column, cells: Sequence[Cell]) -> None:
    """Add a column, unless no row has anything in it."""
    if all(cell == ABSENT for cell in cells):
        return
    columns.append(column)
    for row, cell in zip(rows, cells, strict=True):
        row.append(cell)


def _add_measure(
    comparison: Comparison,
    split: str,
    measure: Measure,
    with_paper: bool,
    columns: list[Column],
    rows: list[list[Cell]],
) -> None:
    cells = [measure.cell(contender.best, split) for contender in comparison.contenders]
    if has_lone_seeds(comparison):
        cells = [
            replace(cell, text=cell.text + ONE_SEED) if is_lone_seed(contender) and cell != ABSENT else cell
            for contender, cell in zip(comparison.contenders, cells, strict=True)
        ]
    _add(columns, rows, Column(measure.title, measure.better), cells)
    if with_paper and not measure.calibrated:
        theirs = [
            _paper_cell(comparison, contender, split, measure.name, measure.decimals)
            for contender in comparison.contenders
        ]
        _add(columns, rows, Column(measure.title, from_paper=True), theirs)


def _add_interval(
    comparison: Comparison, split: str, measure: Measure, columns: list[Column], rows: list[list[Cell]]
) -> None:
    """The interval of the measure that methods are compared by; of the others it is the detail of each cell."""
    cells = [measure.interval(contender.best, split) for contender in comparison.contenders]
    _add(columns, rows, Column(measure.interval_title), cells)


def _add_tuned(
    comparison: Comparison, split: str, with_paper: bool, columns: list[Column], rows: list[list[Cell]]
) -> None:
    """Trained parameters in percent of the encoder's; the paper's numbers leave the head out."""
    contenders = comparison.contenders
    for title, head in ((TUNED, True), ("Tuned without head, %", False)):
        cells = [_tuned_cell(contender.best.runs[0], head) for contender in contenders]
        _add(columns, rows, Column(title), cells)
    if with_paper and REPORTED_SPLITS.get(comparison.settings.task or "") == split:
        found = [_paper_row(contender) for contender in contenders]
        cells = [plain_cell(None if row is None else TUNED_PERCENT[row], 2) for row in found]
        _add(columns, rows, Column("Tuned without head, %", from_paper=True), cells)


def _tuned_cell(run: Run, with_head: bool) -> Cell:
    backbone, trainable = run.measure("parameters", "backbone"), run.measure("parameters", "trainable")
    head = 0.0 if with_head else run.measure("parameters", "head")
    if not backbone or trainable is None or head is None:
        return ABSENT
    return plain_cell(100 * (trainable - head) / backbone, 3)


def _paper_cell(comparison: Comparison, contender: Contender, split: str, measure: str, decimals: int) -> Cell:
    row = _paper_row(contender)
    value = None if row is None else paper_value(comparison.settings.task, split, row, measure)
    return plain_cell(value, decimals)


def _paper_row(contender: Contender) -> PaperMethod | None:
    settings = contender.best.settings
    return find_paper_method(settings.method, settings.kernel, settings.model)


def _count(trial: Trial) -> Cell:
    return Cell(str(len(trial.runs)), float(len(trial.runs)))


def _seconds_per_epoch(run: Run) -> float | None:
    seconds, epochs = as_number(run.metrics.get("seconds")), as_number(run.metrics.get("epochs"))
    return seconds / epochs if seconds is not None and epochs else None


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]

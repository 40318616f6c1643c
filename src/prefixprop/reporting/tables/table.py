"""A table of results: one structure, from which the terminal, Markdown, LaTeX and HTML are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from prefixprop.evaluation.significance import summarise_seeds


class Better(Enum):
    """Which values of a column are better, if any."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


class Place(Enum):
    """Where a cell stands in its column."""

    FIRST = "first"
    SECOND = "second"
    OTHER = "other"


@dataclass(frozen=True)
class Column:
    """A column: its title, and whether it was measured or is what the paper says."""

    title: str
    better: Better = Better.NEITHER
    from_paper: bool = False
    is_text: bool = False


@dataclass(frozen=True)
class Cell:
    """What stands in a table: words, or a number with its spread over seeds; `detail` is told where there is room."""

    text: str
    value: float | None = None
    place: Place = Place.OTHER
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under columns, with a title and notes; `name` is a file's name without its ending."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"Row {number} of {self.title!r} has {len(row)} cells for {len(self.columns)} columns."
                )


ABSENT = Cell("—")

# A column with its cells, from the first row to the last.
Filled = tuple[Column, Sequence[Cell]]


def table_of_columns(name: str, title: str, columns: Iterable[Filled], notes: Sequence[str] = ()) -> Table:
    """A table that was put together column by column."""
    heads, cells = zip(*columns, strict=True)
    return Table(name, title, heads, tuple(zip(*cells, strict=True)), tuple(notes))


def name_columns(methods: Sequence[str], models: Sequence[str]) -> list[Filled]:
    """The columns that say what a row is: its method, and its model where there are several."""
    columns: list[Filled] = [(Column("Method", is_text=True), [Cell(method) for method in methods])]
    if len(set(models)) > 1:
        columns.append((Column("Model", is_text=True), [Cell(model) for model in models]))
    return columns


def setting_cell(value: float | None) -> Cell:
    """A number that was set, such as a learning rate, as it was written; absent where there is none."""
    return ABSENT if value is None else Cell(f"{value:g}", value)


def number_cell(values: Sequence[float], decimals: int, scale: float = 1.0) -> Cell:
    """The mean of the values, with their sample standard deviation where there are at least two.

    >>> number_cell([0.5, 0.6], decimals=1, scale=100).text
    '55.0 ± 7.1'
    """
    if not values:
        return ABSENT
    summary = summarise_seeds([scale * value for value in values])
    # As it is printed, so that equal prints are equal ranks.
    value = round(summary.mean, decimals)
    if summary.deviation is None or summary.interval is None:
        return Cell(f"{summary.mean:.{decimals}f}", value, detail="one seed")
    low, high = summary.interval
    detail = f"{summary.count} seeds, 95 % interval {low:.{decimals}f} to {high:.{decimals}f}"
    return Cell(f"{summary.mean:.{decimals}f} ± {summary.deviation:.{decimals}f}", value, detail=detail)


def interval_cell(values: Sequence[float], decimals: int, scale: float = 1.0) -> Cell:
    """The 95 % interval of the mean over seeds, by Student's t; absent for a single seed, which has none.

    >>> interval_cell([0.5, 0.6, 0.7], decimals=1, scale=100).text
    '35.2 to 84.8'
    """
    interval = summarise_seeds([scale * value for value in values]).interval if values else None
    return ABSENT if interval is None else range_cell(*interval, decimals=decimals)


def range_cell(low: float, high: float, decimals: int, sign: str = "") -> Cell:
    """From one number to another; sorted by the lower."""
    return Cell(f"{low:{sign}.{decimals}f} to {high:{sign}.{decimals}f}", low)


def plain_cell(value: float | None, decimals: int, sign: str = "") -> Cell:
    """A single number; absent where there is none."""
    return ABSENT if value is None else Cell(f"{value:{sign},.{decimals}f}", float(value))


def ranked(table: Table) -> Table:
    """The table with the best and second best of every measured column marked, ties together.

    A column whose values are all the same has no best; values of the paper are never ranked with measured ones.
    """
    marked = [list(row) for row in table.rows]
    for place, column in enumerate(table.columns):
        values = {row[place].value for row in table.rows} - {None}
        if column.better is Better.NEITHER or column.from_paper or len(values) < 2:
            continue
        order = sorted((value for value in values if value is not None), reverse=column.better is Better.HIGHER)
        places = {order[0]: Place.FIRST, order[1]: Place.SECOND}
        for row in marked:
            value = row[place].value
            if value in places:
                row[place] = replace(row[place], place=places[value])
    return replace(table, rows=tuple(map(tuple, marked)))

"""A table of results: one structure, from which the terminal, Markdown, LaTeX and HTML are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from prefixprop.evaluate.significance import summarise_seeds


class Better(Enum):
    """Which values of a column are better, as the arrow that says so."""

    HIGHER = "↑"
    LOWER = "↓"
    NEITHER = ""


class Mark(Enum):
    """How a cell stands out from its column."""

    BOLD = "bold"
    UNDERLINED = "underlined"
    NONE = "none"


@dataclass(frozen=True)
class Cell:
    """Words, or a number with its spread over seeds; `detail` is shown where there is room for it."""

    text: str
    value: float | None = None
    mark: Mark = Mark.NONE
    detail: str = ""


ABSENT = Cell("—")


@dataclass(frozen=True)
class Column:
    """A title over one cell per row; `from_paper` tells the paper's values from measured ones."""

    title: str
    cells: Sequence[Cell]
    better: Better = Better.NEITHER
    from_paper: bool = False
    is_text: bool = False

    @property
    def heading(self) -> str:
        """The title, with whose values they are and which of them are better."""
        title = f"{self.title} (paper)" if self.from_paper else self.title
        return f"{title} {self.better.value}".rstrip()

    @property
    def width(self) -> int:
        """The letters of the longest cell."""
        return max((len(cell.text) for cell in self.cells), default=0)


@dataclass(frozen=True)
class Table:
    """Columns of the same length, with a title and notes; `name` is a file's name without its ending.

    `findings` are sentences that a reader should see first, `section` is the heading under which the page has the
    table, and `fold` what the page folds it away under, if anything. A terminal shows what is not folded away.
    """

    name: str
    title: str
    columns: Sequence[Column]
    notes: Sequence[str] = ()
    findings: Sequence[str] = ()
    section: str = ""
    fold: str = ""

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))


def capitalised(text: str) -> str:
    """The text as a sentence begins; `str.capitalize` would change its other letters too."""
    return text[:1].upper() + text[1:]


def with_units(text: str) -> str:
    """The text with units and arrows kept on the line of the word before."""
    return text.replace(" %", "\u00a0%").replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓")


def text_column(title: str, texts: Iterable[str]) -> Column:
    """A column of words, such as the names of the rows."""
    return Column(title, [Cell(text) for text in texts], is_text=True)


def name_columns(methods: Sequence[str], models: Sequence[str]) -> list[Column]:
    """The columns that say what a row is: its method, and its model where there are several."""
    columns = [text_column("Method", methods)]
    return columns if len(set(models)) == 1 else [*columns, text_column("Model", models)]


def without_empty(columns: Iterable[Column]) -> list[Column]:
    """The columns in which at least one row has something."""
    return [column for column in columns if any(cell != ABSENT for cell in column.cells)]


def without_deviations(column: Column) -> Column:
    """The column with its means alone."""
    return replace(column, cells=[replace(cell, text=cell.text.partition(" ± ")[0]) for cell in column.cells])


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


def count_cell(value: float | None) -> Cell:
    """A large number in three digits, such as `185 k`; absent where there is none.

    >>> count_cell(34_333_442).text
    '34.3 M'
    """
    if value is None or value < 1000:
        return plain_cell(value, 0)
    size, unit = (value / 1e6, "M") if value >= 999_500 else (value / 1e3, "k")
    return Cell(f"{size:.{0 if size >= 99.95 else 1}f} {unit}", float(value))


def ranked(column: Column) -> Column:
    """The column with its best value bold and its second best underlined, ties together.

    A column whose values are all the same has no best.
    """
    values = {cell.value for cell in column.cells if cell.value is not None}
    if column.better is Better.NEITHER or len(values) < 2:
        return column
    best, second, *_ = sorted(values, reverse=column.better is Better.HIGHER)
    marks: dict[float | None, Mark] = {best: Mark.BOLD, second: Mark.UNDERLINED}
    return replace(column, cells=[replace(cell, mark=marks.get(cell.value, cell.mark)) for cell in column.cells])

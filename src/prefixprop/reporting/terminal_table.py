"""Showing a table in a terminal, wide or narrow, without cutting numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from prefixprop.reporting.table_formats import heading
from prefixprop.reporting.tables import Cell, Column, Place, Table

_STYLES = {Place.FIRST: "bold", Place.SECOND: "underline", Place.OTHER: ""}
_PAPER_STYLE = "dim italic"


def print_table(console: Console, table: Table) -> None:
    """Print the table; where the terminal is too narrow for it, turned round, some rows at a time."""
    console.print(Text(table.title, style="bold"))
    widths = _widths(table, console.width)
    if widths is None:
        _print_turned(console, table)
    else:
        console.print(_upright(table, widths))
    for note in table.notes:
        console.print(Text(note, style="dim"))
    console.print()


def _upright(table: Table, widths: Sequence[int]) -> RichTable:
    shown = RichTable()
    for column, width in zip(table.columns, widths, strict=True):
        justify = "left" if column.is_text else "right"
        style = _PAPER_STYLE if column.from_paper else ""
        shown.add_column(Text(heading(column)), justify=justify, style=style, min_width=width, max_width=width)  # type: ignore[arg-type]
    for row in table.rows:
        shown.add_row(*map(_text, row))
    return shown


def _widths(table: Table, available: int) -> list[int] | None:
    """How wide the columns are so that all fit: titles may take several lines, cells one; None where they do not."""
    titles = [heading(column) for column in table.columns]
    cells = [max((len(row[place].text) for row in table.rows), default=0) for place in range(len(titles))]
    least = [max(cell, *map(len, title.split())) for cell, title in zip(cells, titles, strict=True)]
    widths = [max(cell, len(title)) for cell, title in zip(cells, titles, strict=True)]
    borders = 3 * len(titles) + 1
    while sum(widths) + borders > available:
        # Rich narrows columns in proportion, and then cuts numbers.
        place = max(range(len(widths)), key=lambda place: widths[place] - least[place])
        if widths[place] == least[place]:
            return None
        widths[place] -= 1
    return widths


def _print_turned(console: Console, table: Table) -> None:
    rows = list(table.rows)
    while rows:
        count = len(rows)
        while count > 1 and not _fits(console, _turned(table.columns, rows[:count])):
            count -= 1
        console.print(_turned(table.columns, rows[:count]))
        rows = rows[count:]


def _turned(columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]]) -> RichTable:
    """The rows as columns, with the titles at the left."""
    shown = RichTable(show_header=False)
    titles = [heading(column) for column in columns]
    shown.add_column(min_width=max(len(word) for title in titles for word in title.split()))
    for row in rows:
        numbers = (cell.text for column, cell in zip(columns, row, strict=True) if not column.is_text)
        # Long names may take several lines.
        words = (
            word for column, cell in zip(columns, row, strict=True) if column.is_text for word in cell.text.split()
        )
        shown.add_column(justify="right", min_width=max(map(len, [*numbers, *words])), overflow="fold")
    for place, column in enumerate(columns):
        style = _PAPER_STYLE if column.from_paper else ""
        cells = (_text(row[place]) for row in rows)
        shown.add_row(Text(heading(column)), *cells, style=style)
    return shown


def _fits(console: Console, shown: RichTable) -> bool:
    return Measurement.get(console, console.options.update(width=10_000), shown).minimum <= console.width


def _text(cell: Cell) -> Text:
    return Text(cell.text, style=_STYLES[cell.place])

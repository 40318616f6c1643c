"""Showing a table in a terminal, wide or narrow, without cutting numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from prefixprop.reporting.tables.table import Cell, Column, Mark, Table

_STYLES = {Mark.BOLD: "bold", Mark.UNDERLINED: "underline", Mark.NONE: ""}


def print_table(console: Console, table: Table) -> None:
    """Print the table; where the terminal is too narrow for it, turned round, some rows at a time."""
    console.print(Text(table.title, style="bold"))
    for finding in table.findings:
        console.print(Text(finding))
    widths = _widths(table.columns, console.width)
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
        shown.add_column(
            Text(column.heading),
            justify="left" if column.is_text else "right",
            style=_style(column),
            min_width=width,
            max_width=width,
        )
    for row in table.rows:
        shown.add_row(*map(_text, row))
    return shown


def _widths(columns: Sequence[Column], available: int) -> list[int] | None:
    """How wide the columns are so that all fit: words may take several lines, numbers one; None where they do not."""
    least = [_least_width(column) for column in columns]
    widths = [max(column.width, len(column.heading)) for column in columns]
    borders = 3 * len(columns) + 1
    while sum(widths) + borders > available:
        # Rich narrows columns in proportion, and then cuts numbers.
        widest = max(range(len(widths)), key=lambda index: widths[index] - least[index])
        if widths[widest] == least[widest]:
            return None
        widths[widest] -= 1
    return widths


def _least_width(column: Column) -> int:
    words = [word for cell in column.cells for word in cell.text.split()] if column.is_text else []
    return max([0 if column.is_text else column.width, *map(len, [*words, *column.heading.split()])])


def _print_turned(console: Console, table: Table) -> None:
    """Print the rows as columns, with the titles at the left, as many at a time as there is room for."""
    titles = [column.heading for column in table.columns]
    longest_word = max(len(word) for title in titles for word in title.split())
    rows = table.rows
    while rows:
        count = len(rows)
        while count > 1 and _room_for_titles(console.width, table.columns, rows[:count]) < longest_word:
            count -= 1
        room = max(longest_word, _room_for_titles(console.width, table.columns, rows[:count]))
        console.print(_turned(table.columns, rows[:count], min(room, max(map(len, titles)))))
        rows = rows[count:]


def _turned(columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]], width_of_titles: int) -> RichTable:
    shown = RichTable(show_header=False)
    # Widths are fixed: Rich narrows columns in proportion, and then cuts numbers.
    shown.add_column(min_width=width_of_titles, max_width=width_of_titles)
    for row in rows:
        width = _width_of_row(columns, row)
        shown.add_column(justify="right", min_width=width, max_width=width, overflow="fold")
    for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
        shown.add_row(Text(column.heading), *map(_text, cells), style=_style(column))
    return shown


def _room_for_titles(available: int, columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]]) -> int:
    borders = 3 * (len(rows) + 1) + 1
    return available - borders - sum(_width_of_row(columns, row) for row in rows)


def _width_of_row(columns: Sequence[Column], row: tuple[Cell, ...]) -> int:
    """Of a row that is turned into a column: numbers in one line, long names in several."""
    numbers = [cell.text for column, cell in zip(columns, row, strict=True) if not column.is_text]
    words = [word for column, cell in zip(columns, row, strict=True) if column.is_text for word in cell.text.split()]
    return max(map(len, [*numbers, *words]))


def _style(column: Column) -> str:
    return "dim italic" if column.from_paper else ""


def _text(cell: Cell) -> Text:
    return Text(cell.text, style=_STYLES[cell.mark])

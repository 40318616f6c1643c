"""Showing a table in a terminal, without cutting numbers."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from prefixprop.report.tables.table import Column, Mark, Table, with_units

_LEAST_FOR_WORDS = 18  # letters of a line of words, as wide as the longest name of a method
_GAP = 2
_STYLES = {Mark.BOLD: "bold", Mark.UNDERLINED: "underline", Mark.NONE: ""}


def print_table(console: Console, table: Table) -> None:
    """Print the table with what it found and its notes; words may take several lines, numbers one."""
    console.print(Text(table.title, style="bold"))
    for finding in table.findings:
        console.print(Text(finding))
    shown = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for column in table.columns:
        width = None if column.is_text else _width(column)
        heading = "\n".join(textwrap.wrap(with_units(column.heading), width or _LEAST_FOR_WORDS))
        shown.add_column(
            Text(heading, style="bold"),
            justify="left" if column.is_text else "right",
            style="dim italic" if column.from_paper else "",
            vertical="top",
            overflow="fold",
            width=width,
        )
    for row in table.rows:
        shown.add_row(*(Text(cell.text, style=_STYLES[cell.mark]) for cell in row))
    console.print()
    # Rich would cut numbers to fit a narrow terminal. Lines that the terminal breaks are ugly, but right.
    least = sum(_width(column) + _GAP for column in table.columns) - _GAP
    width, console.width = console.width, max(console.width, least)
    console.print(shown, crop=False)
    console.width = width
    console.print()
    for note in table.notes:
        console.print(Text(note, style="dim"))
    console.print()


def _width(column: Column) -> int:
    """The least width: of words a line, of numbers all of them."""
    longest_word = max(map(len, with_units(column.heading).split(" ")))
    return max(longest_word, min(column.width, _LEAST_FOR_WORDS) if column.is_text else column.width)

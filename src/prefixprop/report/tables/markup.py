"""Writing a table as Markdown and HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape

from prefixprop.report.tables.table import Cell, Column, Mark, Table, with_units

_LONG = 50  # letters of a text that is to have several lines, but not one for each word
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_\[\]<>|])")


def to_markdown(table: Table) -> str:
    """Markdown as GitHub shows it; it has no underline of its own, so the second best is in HTML's."""
    lines = [f"### {_markdown_text(table.title)}", ""]
    for finding in table.findings:
        lines += [_markdown_text(finding), ""]
    lines.append("| " + " | ".join(_markdown_text(column.heading) for column in table.columns) + " |")
    lines.append("| " + " | ".join("---" if column.is_text else "---:" for column in table.columns) + " |")
    lines += [
        "| " + " | ".join(marked(cell, _markdown_text, "**{}**", "<u>{}</u>") for cell in row) + " |"
        for row in table.rows
    ]
    for note in table.notes:
        lines += ["", _markdown_text(note)]
    return "\n".join(lines) + "\n"


def to_html(table: Table) -> str:
    """An HTML table with its notes, without its title; cells carry what a column is sorted by.

    Of a table that is not folded away itself, all notes but the first are.
    """
    head = "".join(
        f'<th scope="col" aria-sort="none"{_css_class(column)}>'
        f'<button type="button">{escape(with_units(column.heading))}</button></th>'
        for column in table.columns
    )
    body = "\n".join(f"<tr>{_html_cells(table, row)}</tr>" for row in table.rows)
    notes = [f'<p class="note">{escape(note)}</p>' for note in table.notes]
    if not table.fold and len(notes) > 1:
        notes[1:] = [f'<details class="note"><summary>Notes</summary>{"".join(notes[1:])}</details>']
    return (
        f'<div class="wide"><table class="sortable">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>'
        f"</table></div>\n{''.join(notes)}"
    )


def _html_cells(table: Table, row: tuple[Cell, ...]) -> str:
    cells = []
    for column, cell in zip(table.columns, row, strict=True):
        key = cell.text if column.is_text else "" if cell.value is None else repr(cell.value)
        text = marked(cell, _html_text if column.is_text else escape, "<strong>{}</strong>", "<u>{}</u>")
        detail = f' title="{escape(cell.detail)}"' if cell.detail else ""
        cells.append(f'<td data-key="{escape(key)}"{_css_class(column)}{detail}>{text}</td>')
    return "".join(cells)


def _html_text(text: str) -> str:
    """The text with its hyphenated words kept whole: browsers break a line behind any hyphen."""
    return " ".join(f"<span>{word}</span>" if "-" in word else word for word in escape(text).split(" "))


def _css_class(column: Column) -> str:
    is_long = column.is_text and column.width > _LONG
    names = ["text"] * column.is_text + ["long"] * is_long + ["paper"] * column.from_paper
    return f' class="{" ".join(names)}"' if names else ""


def marked(cell: Cell, escaped: Callable[[str], str], bold: str, underlined: str) -> str:
    """The cell's text, set into the pattern of its mark."""
    patterns = {Mark.BOLD: bold, Mark.UNDERLINED: underlined, Mark.NONE: "{}"}
    return patterns[cell.mark].format(escaped(cell.text))


def _markdown_text(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\1", text)

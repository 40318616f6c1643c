"""Writing a table as LaTeX, with booktabs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from prefixprop.reporting.tables.markup import heading, marked
from prefixprop.reporting.tables.table import Column, Table

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "—": "---", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "×": r"$\times$", "α": r"$\alpha$", "†": r"$^\dagger$",
    "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip
# About as many letters as fit into a column and into the width of a two-column page.
_ONE_COLUMN, _WHOLE_PAGE = 48, 140
_NARROWEST = 8


def to_latex(table: Table) -> str:
    """A LaTeX table; needs the packages booktabs and graphicx.

    One wider than a column takes both of a two-column page; one wider than that is set in parts below each other,
    each with the names of the rows. What is too wide even so is made smaller.
    """
    widths = [max([_NARROWEST, *(len(row[place].text) for row in table.rows)]) for place in range(len(table.columns))]
    environment = "table*" if _total(widths) > _ONE_COLUMN else "table"
    parts = [_tabular(table, places, widths) for places in _parts(table.columns, widths)]
    caption = " ".join([table.title if table.title.endswith("?") else f"{table.title}.", *table.notes])
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        rf"\begin{{{environment}}}",
        r"\centering",
        r"\small",
        "\n\n\\medskip\n".join(parts),
        rf"\caption{{{_text(caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _parts(columns: Sequence[Column], widths: Sequence[int]) -> list[list[int]]:
    """Which columns stand beside each other: as few parts as possible, of about the same width."""
    limit = _WHOLE_PAGE
    parts = _filled_parts(columns, widths, limit)
    while limit > 0 and len(narrower := _filled_parts(columns, widths, limit - 1)) == len(parts) > 1:
        parts, limit = narrower, limit - 1
    return parts


def _filled_parts(columns: Sequence[Column], widths: Sequence[int], limit: int) -> list[list[int]]:
    """As many columns in each part as the limit allows; the paper's values stay with the measured ones."""
    names = [place for place, column in enumerate(columns) if column.is_text]
    together: list[list[int]] = []
    for place, column in enumerate(columns):
        if column.from_paper and together:
            together[-1].append(place)
        elif not column.is_text:
            together.append([place])
    parts: list[list[int]] = []
    for group in together:
        if parts and _total([widths[place] for place in (*parts[-1], *group)]) <= limit:
            parts[-1] += group
        else:
            parts.append([*names, *group])
    return [sorted(part) for part in parts] or [names]


def _tabular(table: Table, places: Sequence[int], widths: Sequence[int]) -> str:
    alignment = "".join("l" if table.columns[place].is_text else "r" for place in places)
    headings = [_heading(table.columns[place], widths[place]) for place in places]
    lines = [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(headings) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = (marked(row[place], _text, r"\textbf{{{}}}", r"\underline{{{}}}") for place in places)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}"])


def _heading(column: Column, width: int) -> str:
    """The heading in as many lines as keep it about as narrow as the column's cells."""
    lines = [_text(line) for line in textwrap.wrap(heading(column), width, break_long_words=False)]
    if len(lines) == 1:
        return lines[0]
    start = rf"\begin{{tabular}}[b]{{@{{}}{'l' if column.is_text else 'r'}@{{}}}}"
    return start + r" \\ ".join(lines) + r"\end{tabular}"


def _total(widths: Sequence[int]) -> int:
    """Of columns with the space between them."""
    return sum(widths) + 2 * len(widths)


def _text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)

"""Writing a table as LaTeX, with booktabs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from prefixprop.report.tables.markup import marked
from prefixprop.report.tables.table import Column, Table

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "—": "---", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "×": r"$\times$", "α": r"$\alpha$",
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
    environment = "table*" if _total_width(table.columns) > _ONE_COLUMN else "table"
    caption = " ".join(
        [table.title if table.title.endswith("?") else f"{table.title}.", *table.findings, *table.notes]
    )
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        rf"\begin{{{environment}}}",
        r"\centering",
        r"\small",
        "\n\n\\medskip\n".join(map(_tabular, _parts(table.columns))),
        rf"\caption{{{_text(caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _parts(columns: Sequence[Column]) -> list[list[Column]]:
    """Which columns stand beside each other: as few parts as possible, of about the same width."""
    limit = _WHOLE_PAGE
    parts = _parts_within(limit, columns)
    while limit > 0 and len(narrower := _parts_within(limit - 1, columns)) == len(parts) > 1:
        parts, limit = narrower, limit - 1
    return parts


def _parts_within(limit: int, columns: Sequence[Column]) -> list[list[Column]]:
    """As many columns in each part as the limit allows; the paper's values stay with the measured ones."""
    names = [column for column in columns if column.is_text]
    together: list[list[Column]] = []
    for column in columns:
        if column.from_paper and together:
            together[-1].append(column)
        elif not column.is_text:
            together.append([column])
    parts: list[list[Column]] = []
    for group in together:
        if parts and _total_width([*parts[-1], *group]) <= limit:
            parts[-1] += group
        else:
            parts.append([*names, *group])
    return [sorted(part, key=columns.index) for part in parts] or [names]


def _tabular(columns: Sequence[Column]) -> str:
    alignment = "".join("l" if column.is_text else "r" for column in columns)
    lines = [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(map(_heading, columns)) + r" \\",
        r"\midrule",
    ]
    for row in zip(*(column.cells for column in columns), strict=True):
        cells = (marked(cell, _text, r"\textbf{{{}}}", r"\underline{{{}}}") for cell in row)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}"])


def _heading(column: Column) -> str:
    """The heading in as many lines as keep it about as narrow as the column's cells."""
    lines = [_text(line) for line in textwrap.wrap(column.heading, _width(column), break_long_words=False)]
    if len(lines) == 1:
        return lines[0]
    start = rf"\begin{{tabular}}[b]{{@{{}}{'l' if column.is_text else 'r'}@{{}}}}"
    return start + r" \\ ".join(lines) + r"\end{tabular}"


def _width(column: Column) -> int:
    return max(_NARROWEST, column.width)


def _total_width(columns: Sequence[Column]) -> int:
    """Of columns with the space between them."""
    return sum(_width(column) + 2 for column in columns)


def _text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)

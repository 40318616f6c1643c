"""A table of results: cells of text in a DataFrame, and how it is written as Markdown and LaTeX.

The page writes tables by its template, and the command prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from prefixprop.evaluate.significance import summarise_seeds

ABSENT = "—"
BOLD, UNDERLINE = "bold", "underline"
# The headings of columns that hold words; the others hold numbers.
NAMES = ("Method", "Against", "Model")
WORDS = (*NAMES, "Set", "Label", "Predicted as", "Document", "Text", "Outcome", "Setting", "Value", "Metric")
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "—": "---",
    "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "×": r"$\times$", "α": r"$\alpha$",
})  # fmt: skip
_ONE_COLUMN = 48  # letters that fit into a column of a two-column page


@dataclass(frozen=True, eq=False)
class Table:
    """Cells of text under their headings, with a title and notes; `name` is a file's name without its ending.

    `marks` says which cells are bold or underlined. `fold` is what the page folds the table away under, if
    anything; a terminal shows what is not folded. With `as_cards` the page shows every row as a card.
    """

    name: str
    title: str
    cells: pd.DataFrame
    notes: Sequence[str] = ()
    fold: str = ""
    marks: pd.DataFrame = field(default_factory=pd.DataFrame)
    as_cards: bool = False

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """The headings, and whether their cells are words."""
        return [(heading, heading in WORDS) for heading in self.cells.columns]

    @property
    def rows(self) -> list[list[tuple[str, str]]]:
        """Every row as pairs of a cell and its mark."""
        marks = self.all_marks.to_numpy()
        return [list(zip(*row, strict=True)) for row in zip(self.cells.to_numpy(), marks, strict=True)]

    @property
    def all_marks(self) -> pd.DataFrame:
        """The mark of every cell, empty for most."""
        return self.marks.reindex_like(self.cells).astype(object).fillna("")


def frame(rows: Iterable[Mapping[str, str | None]]) -> pd.DataFrame:
    """The rows as a frame, without columns in which no row has anything, or all have the same model or baseline."""
    cells = pd.DataFrame(list(rows)).dropna(axis=1, how="all")
    same = [heading for heading in NAMES[1:] if heading in cells and cells[heading].nunique() == 1]
    return cells.drop(columns=same).fillna(ABSENT)


def ranked(cells: pd.DataFrame, rows: int, unranked: str = "") -> pd.DataFrame:
    """Mark the best of the first `rows` cells under every arrow bold, and the second best underlined, as printed.

    A column whose values are all the same has no best.
    """
    marks = {}
    for heading in cells.columns:
        if heading.endswith(("↑", "↓")) and heading != unranked:
            numbers = cells[heading].head(rows).str.split().str[0].str.replace(",", "")
            ranks = pd.to_numeric(numbers, errors="coerce").rank(method="dense", ascending=heading.endswith("↓"))
            if ranks.max() > 1:
                marks[heading] = ranks.map({1: BOLD, 2: UNDERLINE})
    return pd.DataFrame(marks)


def mean_cell(values: Sequence[float], decimals: int) -> str | None:
    """The mean, with the sample standard deviation where there are at least two values.

    >>> mean_cell([50, 60], decimals=1)
    '55.0 ± 7.1'
    """
    if not values:
        return None
    found = summarise_seeds(values)
    spread = "" if found.deviation is None else f" ± {found.deviation:.{decimals}f}"
    return f"{found.mean:,.{decimals}f}{spread}"


def interval_cell(interval: tuple[float, float] | None, sign: str = "") -> str | None:
    """The ends of an interval of shares, in percent."""
    return None if interval is None else " to ".join(f"{100 * end:{sign}.1f}" for end in interval)


def number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def capitalised(text: str) -> str:
    """The text as a sentence begins; `str.capitalize` would change its other letters too."""
    return text[:1].upper() + text[1:]


def file_name(title: str) -> str:
    """The title in small letters, digits and hyphens, which every system, LaTeX and HTML take."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "unnamed"


def to_markdown(table: Table) -> str:
    """Markdown as GitHub shows it; it has no underline of its own, so the second best is in HTML's."""
    patterns = {BOLD: "**{}**", UNDERLINE: "<u>{}</u>", "": "{}"}
    rows = [
        [markdown_text(heading) for heading in table.cells.columns],
        ["---" if is_text else "---:" for _, is_text in table.columns],
        *([patterns[mark].format(markdown_text(cell)) for cell, mark in row] for row in table.rows),
    ]
    lines = [f"### {markdown_text(table.title)}", "", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, *(f"\n{markdown_text(note)}" for note in table.notes)]) + "\n"


def markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))


def to_latex(table: Table) -> str:
    """A LaTeX table for the packages booktabs and graphicx; a wide one takes both columns of a page, or shrinks."""
    commands = {BOLD: "textbf: --rwrap;", UNDERLINE: "underline: --rwrap;", "": ""}
    cells = table.cells.map(lambda text: text.translate(_LATEX)).rename(columns=lambda text: text.translate(_LATEX))
    marks = table.all_marks.replace(commands).set_axis(cells.columns, axis=1)
    styler = cells.style.hide(axis="index").apply(lambda _: marks, axis=None)
    alignment = "".join("l" if is_text else "r" for _, is_text in table.columns)
    tabular = styler.to_latex(hrules=True, column_format=alignment).rstrip()
    environment = "table*" if max(map(len, table.cells.sum(axis=1))) > _ONE_COLUMN else "table"
    caption = " ".join([table.title if table.title.endswith("?") else f"{table.title}.", *table.notes])
    return (
        f"% needs \\usepackage{{booktabs,graphicx}}\n\\begin{{{environment}}}\n\\centering\\small\n"
        f"\\resizebox{{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}}{{!}}{{%\n{tabular}}}\n"
        f"\\caption{{{caption.translate(_LATEX)}}}\n\\label{{tab:{table.name}}}\n\\end{{{environment}}}\n"
    )

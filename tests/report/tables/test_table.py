"""One table structure, four ways to write it."""

from __future__ import annotations

from scipy import stats

from prefixprop.report.tables.latex import to_latex
from prefixprop.report.tables.markup import to_html, to_markdown
from prefixprop.report.tables.table import (
    ABSENT,
    Better,
    Cell,
    Column,
    Mark,
    Table,
    count_cell,
    interval_cell,
    number_cell,
    ranked,
)


def table(*rows: tuple[Cell, ...]) -> Table:
    names, measured, papers, errors = zip(*rows, strict=True)
    columns = [
        Column("Method", names, is_text=True),
        Column("F1, %", measured, Better.HIGHER),
        Column("F1, %", papers, from_paper=True),
        Column("ECE", errors, Better.LOWER),
    ]
    return Table("name", "A_title & more", [ranked(column) for column in columns], ("A note.",))


EXAMPLE = table(
    (Cell("a_b|<c>"), number_cell([0.8, 0.9], 1, 100), Cell("99.0", 99.0), number_cell([0.2], 3)),
    (Cell("second"), number_cell([0.7], 1, 100), Cell("50.0", 50.0), number_cell([0.1], 3)),
    (Cell("third"), number_cell([0.6], 1, 100), ABSENT, ABSENT),
)


def test_a_number_is_the_mean_and_the_sample_deviation() -> None:
    assert number_cell([0.8, 0.9], 1, 100).text == "85.0 ± 7.1"  # √(2 · 5² / 1)
    assert number_cell([0.8], 1, 100).text == "80.0"
    assert number_cell([], 1) == ABSENT


def test_the_interval_is_that_of_student() -> None:
    values = [0.80, 0.82, 0.87]
    low, high = stats.t.interval(0.95, 2, loc=83, scale=stats.sem([100 * value for value in values]))
    assert interval_cell(values, 1, 100).text == f"{low:.1f} to {high:.1f}"
    assert number_cell(values, 1, 100).detail == f"3 seeds, 95 % interval {low:.1f} to {high:.1f}"
    assert interval_cell([0.8], 1) == interval_cell([], 1) == ABSENT


def test_best_and_second_are_marked_by_the_direction_of_the_column_and_the_papers_never() -> None:
    assert [row[1].mark for row in EXAMPLE.rows] == [Mark.BOLD, Mark.UNDERLINED, Mark.NONE]
    assert [row[2].mark for row in EXAMPLE.rows] == [Mark.NONE] * 3
    assert [row[3].mark for row in EXAMPLE.rows] == [Mark.UNDERLINED, Mark.BOLD, Mark.NONE]


def test_what_is_printed_alike_is_ranked_alike() -> None:
    cells = [number_cell([value], 1, 100) for value in (0.8331, 0.8334, 0.827, 0.7)]
    marked = table(*((Cell("x"), cell, ABSENT, ABSENT) for cell in cells))
    assert [row[1].mark for row in marked.rows] == [Mark.BOLD, Mark.BOLD, Mark.UNDERLINED, Mark.NONE]
    same = table(*((Cell("x"), cells[0], ABSENT, ABSENT) for _ in range(2)))
    assert {row[1].mark for row in same.rows} == {Mark.NONE}


def test_markdown() -> None:
    lines = to_markdown(EXAMPLE).splitlines()
    assert lines[0] == r"### A\_title & more"
    assert lines[2] == "| Method | F1, % ↑ | F1, % (paper) | ECE ↓ |"
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[4] == r"| a\_b\|\<c\> | **85.0 ± 7.1** | 99.0 | <u>0.200</u> |"
    assert lines[6] == "| third | 60.0 | — | — |"
    assert lines[-1] == "A note."


def test_html() -> None:
    shown = to_html(EXAMPLE)
    assert "a_b|&lt;c&gt;" in shown and "<c>" not in shown
    assert "<strong>85.0 ± 7.1</strong>" in shown and 'data-key="85.0"' in shown


def test_counts_have_three_digits() -> None:
    counts = (999, 18_432, 999_600, 34_333_442, 434_000_000, None)
    assert [count_cell(count).text for count in counts] == ["999", "18.4 k", "1.0 M", "34.3 M", "434 M", "—"]


SPECIAL = r"50 % of $x_1 & {y} ~ #3 ^ \ < > ± — ↑ × α"


def test_latex_escapes_special_characters() -> None:
    table = Table("name", SPECIAL, [Column("A_b", [Cell(SPECIAL, None, Mark.BOLD)], is_text=True)])
    text = to_latex(table)
    escaped = (
        r"50 \% of \$x\_1 \& \{y\} \textasciitilde{} \#3 \textasciicircum{} \textbackslash{} \textless{} "
        r"\textgreater{} $\pm$ --- $\uparrow$ $\times$ $\alpha$"
    )
    assert rf"\textbf{{{escaped}}} \\" in text
    assert rf"\caption{{{escaped}.}}" in text
    assert r"A\_b \\" in text
    assert text.isascii()

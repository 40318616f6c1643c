"""One table structure, four ways to write it."""

from __future__ import annotations

import io
from html.parser import HTMLParser

import pytest
from rich.console import Console
from scipy import stats

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
    text_column,
)
from prefixprop.report.tables.terminal import print_table


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


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        _ = Table("name", "A title", [Column("A", [ABSENT]), Column("B", [ABSENT, ABSENT])]).rows


def test_markdown() -> None:
    lines = to_markdown(EXAMPLE).splitlines()
    assert lines[0] == r"### A\_title & more"
    assert lines[2] == "| Method | F1, % ↑ | F1, % (paper) | ECE ↓ |"
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[4] == r"| a\_b\|\<c\> | **85.0 ± 7.1** | 99.0 | <u>0.200</u> |"
    assert lines[6] == "| third | 60.0 | — | — |"
    assert lines[-1] == "A note."


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[dict[str, str | None]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "td":
            self.cells.append(dict(attrs))
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data.strip("\n")


def test_html_cells_carry_their_sort_key_and_the_papers_their_class() -> None:
    parser = Cells()
    parser.feed(to_html(EXAMPLE))
    assert parser.texts[:4] == ["a_b|<c>", "85.0 ± 7.1", "99.0", "0.200"]
    assert [cell["data-key"] for cell in parser.cells[:4]] == ["a_b|<c>", "85.0", "99.0", "0.2"]
    assert [cell.get("class") for cell in parser.cells[:4]] == ["text", None, "paper", None]
    assert parser.cells[11]["data-key"] == ""
    assert "<strong>85.0 ± 7.1</strong>" in to_html(EXAMPLE)


def test_names_are_not_broken_at_their_hyphens() -> None:
    names = table((Cell("prefix-propagation, <exp> kernel"), *EXAMPLE.rows[0][1:]))
    assert "><span>prefix-propagation,</span> &lt;exp&gt; kernel</td>" in to_html(names)
    parser = Cells()
    parser.feed(to_html(names))
    assert parser.texts[0] == parser.cells[0]["data-key"] == "prefix-propagation, <exp> kernel"


def test_a_cell_tells_its_detail_where_the_pointer_is() -> None:
    assert 'title="2 seeds, 95 % interval' in to_html(EXAMPLE)


@pytest.mark.parametrize("width", [70, 80, 120])
def test_a_table_of_methods_keeps_to_the_terminal(width: int) -> None:
    names = ["prefix-propagation, exp kernel", "lora", "prefix-tuning"]
    numbers = [Column(f"Measure number {n}, %", [Cell(f"7{n}.4 to 81.{n}")] * len(names)) for n in range(3)]
    stream = io.StringIO()
    print_table(Console(file=stream, width=width), Table("x", "A table", [text_column("Method", names), *numbers]))
    shown = stream.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert all(shown.count(f"7{n}.4 to 81.{n}") == len(names) for n in range(3))


def test_counts_have_three_digits() -> None:
    counts = (999, 18_432, 999_600, 34_333_442, 434_000_000, None)
    assert [count_cell(count).text for count in counts] == ["999", "18.4 k", "1.0 M", "34.3 M", "434 M", "—"]


@pytest.mark.parametrize("width", [120, 70, 44])
def test_long_texts_take_several_lines_and_lose_nothing(width: int) -> None:
    text = "It begins with many words " * 6 + "https://" + "x" * 150
    stream = io.StringIO()
    columns = [text_column("Document", ["d1"]), Column("Sure, %", [Cell("96")]), text_column("It begins", [text])]
    print_table(Console(file=stream, width=width), Table("x", "A table", columns))
    shown = stream.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert (shown.count("x"), shown.count("words"), shown.count("…")) == (150, 6, 0)


@pytest.mark.parametrize("width", [200, 40, 36])
def test_numbers_are_not_cut_in_a_narrow_terminal(width: int) -> None:
    stream = io.StringIO()
    print_table(Console(file=stream, width=width), EXAMPLE)
    shown = stream.getvalue()
    assert "…" not in shown
    for number in ("85.0 ± 7.1", "99.0", "0.200", "70.0", "0.100", "60.0"):
        assert number in shown

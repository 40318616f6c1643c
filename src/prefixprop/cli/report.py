"""`prefixprop report` and `archive`: tables and figures of finished runs, and archives of them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefixprop.cli.messages import clean_errors, need_report_packages, printable
from prefixprop.settings.methods import BASELINE

if TYPE_CHECKING:
    from prefixprop.report import Report
    from prefixprop.report.table import Table as ReportTable


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories, or folders of them.")],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write report.html, and the tables and figures as files, here."),
    ] = None,
    format_name: Annotated[
        Literal["terminal", "markdown", "latex", "html"],
        typer.Option("--format", help="Format of the printed report."),
    ] = "terminal",
    paper: Annotated[bool, typer.Option("--paper", help="Also show the paper's values, marked as such.")] = False,
    baseline: Annotated[
        str, typer.Option(metavar="METHOD", help="The method that the others are tested against.")
    ] = BASELINE,
) -> None:
    """Compare finished runs in tables, figures and a page.

    --output adds tests, all metrics and figures. Every seed counts once, at the learning rate that the dev set or
    cross-validation chose.

    Example: prefixprop report runs --output report
    """
    with clean_errors():
        if output is not None and output.exists() and not output.is_dir():
            raise ValueError(f"--output {output} is a file; give a folder.")
        messages = Console(stderr=True, highlight=False, soft_wrap=True)
        with messages.status("reading runs"):
            need_report_packages("Reports")
            from prefixprop.report import make_report

            found = make_report(runs, paper, baseline=baseline)
        for remark in found.remarks:
            messages.print(f"Note: {remark}", markup=False)
        if format_name == "terminal":
            _print_tables(found)
        else:
            written_as = {"markdown": found.markdown, "latex": found.latex, "html": found.page}
            typer.echo(written_as[format_name](), nl=False)
        if output is not None:
            with messages.status("drawing figures"):
                written = found.write(output)
            messages.print(f"{len(written)} files in {output}; open {written[0]}", markup=False)


def _print_tables(found: Report) -> None:
    console = Console()
    for section in found.sections:
        console.print(
            Text(printable(section.title), style="bold underline"),
            *map(printable, section.findings),
            "",
            sep="\n",
            markup=False,
        )
        for table in section.tables:
            if not (table.fold or table.as_cards):
                print_table(console, table)
    if left := sum(bool(table.fold or table.as_cards) for table in found.tables):
        typer.echo(f"{left} more tables (tests, mistakes, metrics): --output FOLDER, or --format markdown.", err=True)


def print_table(console: Console, table: ReportTable) -> None:
    """Print the table and its notes; words may take several lines, and numbers are never cut."""
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading, is_text in table.columns:
        lines = textwrap.wrap(re.sub(" (?=[↑↓%])", "\u00a0", heading), 14, break_long_words=False)
        longest = max(map(len, table.cells[heading]))
        shown.add_column(
            Text("\n".join(lines), style="bold"),
            justify="left" if is_text else "right",
            overflow="fold",
            min_width=max(min(longest, 18) if is_text else longest, *map(len, lines), 1),
            style="dim italic" if "(paper)" in heading else "",
        )
    for row in table.rows:
        shown.add_row(*(Text(printable(cell), style=mark) for cell, mark in row))
    console.print(Text(table.title, style="bold"), "", sep="\n")
    # Rich would cut numbers to fit a narrow terminal. Lines that the terminal breaks are ugly, but right.
    width, console.width = console.width, max(console.width, Console(width=10_000).measure(shown).minimum)
    console.print(shown, crop=False)
    console.width = width
    console.print("", *(Text(f"{printable(note)}\n", style="dim") for note in table.notes), sep="\n")


def archive(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories, archives, or folders of them.")],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the archive; it must not have one yet.")],
) -> None:
    """Pack finished runs without weights, to keep or publish.

    report makes the same tables from an archive, and sweep does not repeat its runs. The command that trained and the
    folder of a task's data are left out.

    Example: prefixprop archive runs/table2 --output results/table2
    """
    with clean_errors():
        messages = Console(stderr=True, highlight=False, soft_wrap=True)
        with messages.status("packing runs"):
            from prefixprop.runs.archive import archive_runs
            from prefixprop.runs.find import find_runs

            found = find_runs(runs)
            for remark in found.remarks:
                messages.print(remark, markup=False)
            archive_runs(found.runs, output)
        size = sum(file.stat().st_size for file in output.iterdir() if file.is_file())
        typer.echo(f"{output}: {len(found.runs)} run{'s' * (len(found.runs) > 1)}, {size / 1e6:.2f} MB.")

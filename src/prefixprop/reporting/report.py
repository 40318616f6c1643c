"""A report: what run directories tell, as tables, pictures and one page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prefixprop.atomic_files import write_text
from prefixprop.reporting.gallery import Picture, pictures
from prefixprop.reporting.groups import Comparison, compare
from prefixprop.reporting.page import html_page
from prefixprop.reporting.paper_tables import paper_tables
from prefixprop.reporting.result_tables import result_tables
from prefixprop.reporting.runs import find_runs
from prefixprop.reporting.table_formats import to_latex, to_markdown
from prefixprop.reporting.tables import Table

PAGE, TABLES, FIGURES = "report.html", "tables", "figures"


@dataclass(frozen=True)
class Report:
    """The tables of runs; `paper` has the paper's own, where they are wanted."""

    comparisons: tuple[Comparison, ...]
    measured: tuple[Table, ...]
    paper: tuple[Table, ...]
    remarks: tuple[str, ...]
    summary: str

    @property
    def tables(self) -> tuple[Table, ...]:
        return (*self.measured, *self.paper)

    def draw(self) -> tuple[list[Picture], list[str]]:
        """All pictures, and why others could not be drawn; none at all where matplotlib is not installed."""
        complaints: list[str] = []
        try:
            return list(pictures(self.comparisons, complaints.append)), complaints
        except ImportError as error:
            return [], [str(error)]

    def page(self) -> str:
        """The report as one HTML page."""
        drawn, complaints = self.draw()
        return self._page(drawn, complaints)

    def write(self, folder: Path) -> list[Path]:
        """Write the page, every table as Markdown and LaTeX, and every picture as SVG, PNG and PDF."""
        drawn, complaints = self.draw()
        written = [folder / PAGE]
        write_text(written[0], self._page(drawn, complaints))
        for table in self.tables:
            for ending, text in ((".md", to_markdown(table)), (".tex", to_latex(table))):
                written.append(folder / TABLES / f"{table.name}{ending}")
                write_text(written[-1], text)
        for picture in drawn:
            written += picture.save(folder / FIGURES)
        return written

    def _page(self, drawn: list[Picture], complaints: list[str]) -> str:
        return html_page(self.measured, self.paper, drawn, (*self.remarks, *complaints), self.summary)


def make_report(paths: Iterable[str | Path], with_paper: bool = False) -> Report:
    """Read all runs at and below the paths; `ValueError` where none of them is finished.

    >>> report = make_report(["runs"])
    >>> report.write(Path("report"))
    """
    given = list(paths)
    found = find_runs(given)
    if not found.runs:
        places = ", ".join(map(str, given))
        lines = [f"There is no finished run at or below {places}; `prefixprop train` makes runs.", *found.remarks]
        raise ValueError("\n".join(lines))
    comparisons = compare(found.runs)
    titles = ", ".join(comparison.title for comparison in comparisons)
    return Report(
        comparisons=comparisons,
        measured=tuple(result_tables(comparisons, with_paper)),
        paper=tuple(paper_tables()) if with_paper else (),
        remarks=found.remarks,
        summary=f"{len(found.runs)} finished {'run' if len(found.runs) == 1 else 'runs'} on {titles}.",
    )

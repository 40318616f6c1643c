"""A report on run directories: tables, pictures and one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prefixprop.atomic_files import write_text
from prefixprop.report.choose.comparisons import Comparison, compare, protocol_title
from prefixprop.report.figures.gallery import Picture, pictures
from prefixprop.report.page import html_page
from prefixprop.report.tables.folds import fold_tables
from prefixprop.report.tables.latex import to_latex
from prefixprop.report.tables.markup import to_markdown
from prefixprop.report.tables.paper import paper_tables
from prefixprop.report.tables.results import result_tables
from prefixprop.report.tables.table import Table
from prefixprop.runs.find import FoundRuns, find_runs
from prefixprop.runs.run import SPLITS
from prefixprop.settings.methods import BASELINE, METHODS

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
        """Write the page, every table as Markdown and LaTeX, and every picture as PNG and PDF."""
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
        return html_page(self.tables, drawn, (*self.remarks, *complaints), self.summary)


def make_report(
    paths: Iterable[str | Path],
    with_paper: bool = False,
    *,
    split: str | None = None,
    baseline: str = BASELINE,
) -> Report:
    """Read all runs at and below the paths; `ValueError` where none of them is finished.

    `split` shows only dev or only test, and so no cross-validation, which is on train; `baseline` is the method that
    the others are tested against.

    >>> report = make_report(["runs"])
    >>> report.write(Path("report"))
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f"--split {split!r} is unknown; choose one of {', '.join(SPLITS)}, or none for both.")
    if baseline not in METHODS:
        raise ValueError(f"--baseline {baseline!r} is unknown; choose one of {', '.join(METHODS)}.")
    given = list(paths)
    found = find_runs(given)
    comparisons = _comparisons(given, found, split)
    return Report(
        comparisons=comparisons,
        measured=(
            *result_tables(comparisons, with_paper, baseline),
            *(fold_tables(found.runs, comparisons) if split is None else ()),
        ),
        paper=tuple(paper_tables()) if with_paper else (),
        remarks=found.remarks,
        summary=_summary(found),
    )


def _comparisons(given: Sequence[str | Path], found: FoundRuns, split: str | None) -> tuple[Comparison, ...]:
    folders = ", ".join(map(str, given))
    if not found.runs:
        lines = [f"There is no finished run at or below {folders}; `prefixprop train` makes runs.", *found.remarks]
        raise ValueError("\n".join(lines))
    comparisons = compare(found.runs)
    if split is None:
        return comparisons
    narrowed = tuple(
        replace(one, documents={split: one.documents[split]}) for one in comparisons if split in one.documents
    )
    if not narrowed:
        raise ValueError(f"No run at or below {folders} was judged on {split}; leave --split out, or choose another.")
    return narrowed


def _summary(found: FoundRuns) -> str:
    titles = "; ".join(sorted({protocol_title(run.settings) for run in found.runs}))
    return f"{len(found.runs)} finished {'run' if len(found.runs) == 1 else 'runs'} on {titles}."

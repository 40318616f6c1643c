"""A report on run directories: sections of findings, tables and figures, as files and as one page."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from prefixprop.atomic_files import write_text
from prefixprop.report.choose import Comparison, compare, method_name, protocol_title
from prefixprop.report.figures import (
    ReportFigure,
    comparison_figures,
    reliability_figure,
    run_figures,
    saved,
    svg_of,
)
from prefixprop.report.one_run import SETTINGS, JudgedRun, command, facts, one_run_tables, subtitle, verdict
from prefixprop.report.results import fold_tables, metric_tables, overview_tables
from prefixprop.report.significance import baseline_pairs, findings, significance_table
from prefixprop.report.table import Table, capitalised, file_name, markdown_text, to_latex, to_markdown
from prefixprop.runs.find import find_runs
from prefixprop.settings.methods import BASELINE, METHODS


@dataclass(frozen=True)
class Section:
    """One task: findings first, then tables and figures; those with a `fold` are folded away on the page."""

    title: str
    findings: Iterable[str] = ()
    tables: list[Table] = field(default_factory=list)
    figures: list[ReportFigure] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def folds(self) -> list[str]:
        """In the order of the page: settings come last."""
        folds = [table.fold for table in self.tables] + [figure.fold for figure in self.figures]
        return sorted(filter(None, dict.fromkeys(folds)), key=lambda fold: fold == SETTINGS)

    def markdown(self) -> str:
        lines = [f"## {markdown_text(self.title)}", *map(markdown_text, self.findings)]
        return "\n".join([*(f"{line}\n" for line in lines), *map(to_markdown, self.tables)])


@dataclass(frozen=True)
class Report:
    """What runs found, ready to be written."""

    title: str
    summary: str
    sections: list[Section]
    remarks: tuple[str, ...]

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    def markdown(self) -> str:
        return "\n".join(section.markdown() for section in self.sections)

    def latex(self) -> str:
        return "\n".join(map(to_latex, self.tables))

    def page(self) -> str:
        """The report as one HTML page that needs nothing else. Texts from runs and documents are always escaped."""
        loader = PackageLoader("prefixprop.report")
        environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        environment.filters["units"] = lambda text: re.sub(" (?=[%↑↓])", "\u00a0", text)
        environment.filters["without"] = lambda text, start: capitalised(text.removeprefix(start).lstrip(",: "))
        environment.filters["svg"] = lambda figure: b64encode(svg_of(figure)).decode()
        return environment.get_template("page.html").render(report=self, zip=zip)

    def write(self, folder: Path) -> list[Path]:
        """Write the page, every table as Markdown and LaTeX, and every figure as PNG and PDF."""
        texts = {"report.html": self.page()}
        for table in self.tables:
            texts |= {f"tables/{table.name}.md": to_markdown(table), f"tables/{table.name}.tex": to_latex(table)}
        for path, text in texts.items():
            write_text(folder / path, text)
        drawn = [figure for section in self.sections for figure in section.figures]
        figures = {f"figures/{one.name}{end}": one.drawn for one in drawn for end in (".png", ".pdf")}
        for path, figure in figures.items():
            saved(figure, folder / path)
        return [folder / path for path in (*texts, *figures)]


def make_report(paths: Iterable[str | Path], with_paper: bool = False, *, baseline: str = BASELINE) -> Report:
    """Read all runs at and below the paths; `ValueError` where none of them is finished.

    `baseline` is the method that the others are tested against.

    >>> report = make_report(["runs"])
    >>> report.write(Path("report"))
    """
    if baseline not in METHODS:
        raise ValueError(f"--baseline {baseline!r} is unknown; choose one of {', '.join(METHODS)}.")
    given = list(paths)
    found = find_runs(given)
    if not found.runs:
        folders = ", ".join(map(str, given))
        lines = [f"There is no finished run at or below {folders}; `prefixprop train` makes runs.", *found.remarks]
        raise ValueError("\n".join(lines))
    comparisons = compare(found.runs)
    folds = fold_tables(found.runs, comparisons)
    sections = [Section("All tasks", tables=overview_tables(comparisons))] if len(comparisons) > 1 else []
    for number, comparison in enumerate(comparisons, start=1):
        # Two comparisons may share their title, but not the names of their files.
        name = f"{number}-{file_name(comparison.settings.data_name)}"
        is_one = len(comparison.runs) == 1
        section = _one_run(comparison, name) if is_one else _several_runs(comparison, name, with_paper, baseline)
        section.tables.extend(replace(table, fold="Cross-validation") for table in folds.pop(comparison.title, []))
        sections.append(section)
    sections += [Section(title, tables=tables) for title, tables in folds.items()]
    if len(found.runs) == len(comparisons) == 1:
        run = found.runs[0]
        return Report(f"{sections[0].title}: {method_name(run.settings)}", subtitle(run), sections, found.remarks)
    titles = "; ".join(sorted({protocol_title(run.settings) for run in found.runs}))
    summary = f"{len(found.runs)} finished {'run' if len(found.runs) == 1 else 'runs'} on {titles}."
    return Report("Report on runs", summary, sections, found.remarks)


def _one_run(comparison: Comparison, name: str) -> Section:
    judged = JudgedRun(comparison.runs[0], comparison.judged_on, comparison.items)
    figures = [*run_figures(judged, name), *comparison_figures(comparison, name)]
    tables = one_run_tables(judged, comparison.title, name)
    return Section(comparison.title, verdict(judged), tables, figures, facts(comparison, judged), command(judged))


def _several_runs(comparison: Comparison, name: str, with_paper: bool, baseline: str) -> Section:
    pairs = baseline_pairs(comparison, baseline)
    brief, *metrics = metric_tables(comparison, name, with_paper)
    tests = [significance_table(comparison, pairs, f"{name}-tests", baseline)] if pairs else []
    figures = [*comparison_figures(comparison, name)]
    for at, row in enumerate(comparison.rows, start=1):
        # Of one seed, because the mean of several would be of no model.
        run = row.with_predictions(comparison.judged_on)[0]
        judged = JudgedRun(run, comparison.judged_on, comparison.items)
        title = f"{comparison.name(row)}, seed {run.settings.seed}"
        figures += reliability_figure(judged, f"{name}-{at}", title, fold="One run of each method")
    return Section(comparison.title, findings(comparison, pairs), [brief, *tests, *metrics], figures)

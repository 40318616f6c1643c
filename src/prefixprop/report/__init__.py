"""Reports on runs in tables and figures, archives of runs, and the attention that prefixes get."""

from prefixprop.report.figures import plot_confusion, plot_reliability, prefix_share
from prefixprop.report.report import Report, make_report
from prefixprop.runs.archive import archive_runs
from prefixprop.runs.find import find_runs

__all__ = [
    "Report",
    "archive_runs",
    "find_runs",
    "make_report",
    "plot_confusion",
    "plot_reliability",
    "prefix_share",
]

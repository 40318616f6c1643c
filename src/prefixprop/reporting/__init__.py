"""What prefixes do, and how good and how trustworthy predictions are, in numbers and pictures."""

from prefixprop.reporting.figures.confusion import plot_confusion
from prefixprop.reporting.figures.prefixes import plot_alpha, plot_prefix_share, prefix_share
from prefixprop.reporting.figures.reliability import plot_reliability
from prefixprop.reporting.report import Report, make_report
from prefixprop.runs.archive import ArchiveResult, archive_runs

__all__ = [
    "ArchiveResult",
    "Report",
    "archive_runs",
    "make_report",
    "plot_alpha",
    "plot_confusion",
    "plot_prefix_share",
    "plot_reliability",
    "prefix_share",
]

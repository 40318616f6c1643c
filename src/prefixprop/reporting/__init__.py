"""What prefixes do, and how good and how trustworthy predictions are, in numbers and pictures."""

from prefixprop.reporting.archive import ArchiveResult, archive_runs
from prefixprop.reporting.confusion import plot_confusion
from prefixprop.reporting.figures import plot_alpha, plot_prefix_share
from prefixprop.reporting.prefix_share import prefix_share
from prefixprop.reporting.reliability import plot_reliability
from prefixprop.reporting.report import Report, make_report

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

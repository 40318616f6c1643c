"""What prefixes do, and how good and how trustworthy predictions are, in numbers and pictures.

A report needs no PyTorch, and pictures of prefixes do: each is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixprop.lazy_imports import lazy_names

if TYPE_CHECKING:
    from prefixprop.report.figures.confusion import plot_confusion
    from prefixprop.report.figures.prefixes import plot_alpha, plot_prefix_share, prefix_share
    from prefixprop.report.figures.reliability import plot_reliability
    from prefixprop.report.report import Report, make_report
    from prefixprop.runs.archive import archive_runs
    from prefixprop.runs.find import find_runs

__all__ = [
    "Report",
    "archive_runs",
    "find_runs",
    "make_report",
    "plot_alpha",
    "plot_confusion",
    "plot_prefix_share",
    "plot_reliability",
    "prefix_share",
]

__getattr__ = lazy_names(
    "prefixprop",
    {
        "Report": "report.report",
        "archive_runs": "runs.archive",
        "find_runs": "runs.find",
        "make_report": "report.report",
        "plot_alpha": "report.figures.prefixes",
        "plot_confusion": "report.figures.confusion",
        "plot_prefix_share": "report.figures.prefixes",
        "plot_reliability": "report.figures.reliability",
        "prefix_share": "report.figures.prefixes",
    },
)

"""What prefixes do, and how good and how trustworthy predictions are, in numbers and pictures.

A report needs no PyTorch, and pictures of prefixes do: each is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixprop.lazy_imports import lazy_names

if TYPE_CHECKING:
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

__getattr__ = lazy_names(
    "prefixprop",
    {
        "ArchiveResult": "runs.archive",
        "Report": "reporting.report",
        "archive_runs": "runs.archive",
        "make_report": "reporting.report",
        "plot_alpha": "reporting.figures.prefixes",
        "plot_confusion": "reporting.figures.confusion",
        "plot_prefix_share": "reporting.figures.prefixes",
        "plot_reliability": "reporting.figures.reliability",
        "prefix_share": "reporting.figures.prefixes",
    },
)

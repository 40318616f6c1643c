"""What prefixes do, and how good and how trustworthy predictions are, in numbers and figures.

A report needs no PyTorch, and figures of prefixes do: each is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixprop.lazy_imports import lazy_names

if TYPE_CHECKING:
    from prefixprop.report.figures import plot_confusion, plot_reliability
    from prefixprop.report.prefixes import plot_alpha, plot_prefix_share, prefix_share
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

_HOMES = {
    "Report": "report.report",
    "archive_runs": "runs.archive",
    "find_runs": "runs.find",
    "make_report": "report.report",
    "plot_alpha": "report.prefixes",
    "plot_confusion": "report.figures",
    "plot_prefix_share": "report.prefixes",
    "plot_reliability": "report.figures",
    "prefix_share": "report.prefixes",
}
__getattr__ = lazy_names("prefixprop", _HOMES)

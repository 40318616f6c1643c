"""Calibration over training, per method (the paper's figure of ECE on ArXiv)."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from prefixprop.reporting.choose.comparisons import Comparison, Trial
from prefixprop.reporting.figures.canvas import legend_below, new_figure, plain, saved
from prefixprop.reporting.figures.method_styles import method_styles, picture_name
from prefixprop.runs.run import as_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_calibration_course(comparison: Comparison, path: str | Path | None = None) -> Figure | None:
    """Draw ECE on dev after every epoch: the mean over seeds, and their range.

    None where no run has a history of two epochs. The figure is written to `path` if given; its ending says how.
    """
    courses = {place: _course(row.best) for place, row in enumerate(comparison.contenders)}
    if all(len(course) < 2 for course in courses.values()):
        return None
    figure = new_figure(width=5.2, height=3.6)
    axis = figure.subplots()
    styles = method_styles(comparison)
    for place, course in courses.items():
        if not course:
            continue
        style, name = styles[place], picture_name(comparison, comparison.contenders[place])
        epochs = sorted(course)
        means = [statistics.fmean(course[epoch]) for epoch in epochs]
        axis.plot(epochs, means, markersize=4, linewidth=1.6, label=plain(name), **style)  # type: ignore[arg-type]
        low, high = [min(course[epoch]) for epoch in epochs], [max(course[epoch]) for epoch in epochs]
        axis.fill_between(epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.set(xlabel="epoch", ylabel="ECE on dev (lower is better)", ylim=(0, None))
    axis.locator_params(axis="x", integer=True)
    axis.grid(alpha=0.3)
    axis.set_title(plain(comparison.title), fontsize=10)
    legend_below(figure)
    return saved(figure, path)


def _course(trial: Trial) -> dict[int, list[float]]:
    """ECE of every run, by epoch."""
    course: dict[int, list[float]] = {}
    for run in trial.runs:
        for line in run.history:
            epoch, ece = as_number(line.get("epoch")), as_number(line.get("dev_ece"))
            if epoch is not None and ece is not None:
                course.setdefault(int(epoch), []).append(ece)
    return course

"""The reliability diagram: how often a model is right, by how sure it says it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prefixprop.evaluate import Reliability
from prefixprop.report.figures.canvas import BLUE, GREEN, VERMILION, new_figure, plain, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_reliability(
    before: Reliability,
    after: Reliability | None = None,
    path: str | Path | None = None,
    *,
    temperature: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draw accuracy against confidence, and below it how many documents have which confidence.

    `before` is what `prefixprop.evaluate.reliability` returns; `after`, drawn over it, is the same after scaling by
    `temperature`, with larger points where more documents are. In every bin a hatched bar spans the gap between
    accuracy and mean confidence, whose mean over documents is ECE. The figure is written to `path` if given; its
    ending says how (png, pdf, svg).
    """
    figure = new_figure(width=4.8, height=6.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    if title is not None:
        upper.set_title(plain(title), fontsize=10)
    entries = _draw_bars(upper, before, "accuracy" if after is None else "before scaling")
    if after is not None:
        scaling = "scaling" if temperature is None else f"scaling, T = {temperature:.2f}"
        entries.append(_draw_points(upper, after, f"after {scaling}"))
    entries += upper.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle="--", label="perfect calibration")
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy (share of right predictions)")
    _draw_histogram(lower, before, after)
    lower.set(xlabel="confidence (probability of the predicted class)", ylabel="documents")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    # Beside the axes, because with few documents any corner may hold data.
    figure.legend(handles=entries, fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    return saved(figure, path)


def _draw_bars(axis: Axes, found: Reliability, name: str) -> list[Any]:
    used = found.counts > 0
    left, width = found.edges[:-1][used], np.diff(found.edges)[used]
    accuracy, confidence = found.accuracy[used], found.confidence[used]
    label = f"{name}, ECE {found.expected_error:.3f}"
    bars = axis.bar(left, accuracy, width, align="edge", color=BLUE, alpha=0.75, edgecolor="white", label=label)
    gaps = axis.bar(
        left,
        confidence - accuracy,
        width,
        bottom=accuracy,
        align="edge",
        facecolor="none",
        edgecolor=VERMILION,
        hatch="////",
        label="gap to the mean confidence",
    )
    return [bars, gaps]


def _draw_points(axis: Axes, found: Reliability, name: str) -> Any:
    used = found.counts > 0
    # The area says how many documents stand behind a point; an accuracy of 0 or 1 lies on the frame, over it.
    area = 12 + 78 * found.counts[used] / found.counts.max()
    return axis.scatter(
        found.confidence[used],
        found.accuracy[used],
        s=area,
        marker="D",
        color=GREEN,
        edgecolor="white",
        label=f"{name}, ECE {found.expected_error:.3f}",
        clip_on=False,
        zorder=3,
    )


def _draw_histogram(axis: Axes, before: Reliability, after: Reliability | None) -> None:
    width = np.diff(before.edges)
    axis.bar(before.edges[:-1], before.counts, width, align="edge", color=BLUE, alpha=0.75, edgecolor="white")
    if after is not None:
        axis.stairs(after.counts, after.edges, color=GREEN, linewidth=1.5)
    axis.locator_params(axis="y", integer=True, nbins=4)

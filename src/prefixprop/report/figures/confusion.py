"""The confusion matrix: which class is taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from prefixprop.report.figures.canvas import new_figure, plain, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST_NAME = 24
# Not quite black and white: the page turns these two round in dark mode, but the cells behind the numbers stay.
ON_LIGHT, ON_DARK = "#111111", "#FEFEFE"


def plot_confusion(
    counts: ArrayLike, label_names: Sequence[str], path: str | Path | None = None, *, title: str | None = None
) -> Figure:
    """Draw how many documents of each label (rows) were predicted as each class (columns).

    `counts` is what `prefixprop.evaluate.confusion_counts` returns. Colour is the share of the label's documents,
    so that rare labels are as visible as frequent ones; cells without documents are left blank. The figure is written
    to `path` if given; its ending says how (png, pdf, svg).
    """
    table = np.asarray(counts)
    classes = len(label_names)
    if table.shape != (classes, classes):
        raise ValueError(
            f"Counts of {classes} labels must be {classes} × {classes}, but their shape is {table.shape}."
        )
    shares = table / table.sum(axis=1, keepdims=True).clip(min=1)

    side = max(2.4, 0.27 * classes)
    figure = new_figure(width=side + 2.4, height=side + 1.6)
    axis = figure.subplots()
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    few = classes <= 6
    for row, column in np.argwhere(table > 0):
        share = shares[row, column]
        text = f"{table[row, column]:,}\n{share:.0%}" if few else str(table[row, column])
        colour = ON_DARK if share > 0.55 else ON_LIGHT
        cell = axis.text(column, row, text, ha="center", va="center", fontsize=10 if few else 6, color=colour)
        cell.set_in_layout(False)  # the layout need not measure hundreds of texts that lie inside the axes

    names = [plain(_shortened(name)) for name in label_names]
    ticks = range(classes)
    fits_beside = max(map(len, names)) * 0.07 < side / classes  # inches, at about 0.07 a letter
    axis.set_xticks(ticks, names, rotation=0 if fits_beside else 90, fontsize=8)
    axis.set_yticks(ticks, names, fontsize=8)
    axis.set_xlabel("predicted class", fontsize=9)
    axis.set_ylabel("label", fontsize=9)
    if title is not None:
        axis.set_title(plain(title), fontsize=10)
    # Lines between the cells keep blank ones apart.
    axis.set_xticks(np.arange(classes - 1) + 0.5, minor=True)
    axis.set_yticks(np.arange(classes - 1) + 0.5, minor=True)
    axis.grid(which="minor", color="#DDDDDD", linewidth=0.6)
    axis.tick_params(which="minor", length=0)
    scale = figure.colorbar(image, ax=axis, shrink=0.8)
    scale.set_label("share of the label's documents", fontsize=8)
    scale.ax.tick_params(labelsize=8)
    return saved(figure, path)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"

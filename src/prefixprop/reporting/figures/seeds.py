"""The spread of a measure over seeds, per method (the paper's violin plot of Hyperpartisan)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prefixprop.reporting.choose.comparisons import Comparison
from prefixprop.reporting.figures.canvas import new_figure, plain, saved
from prefixprop.reporting.figures.method_styles import method_styles, picture_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fewer points than this have no shape worth drawing.
_FEWEST_FOR_VIOLIN = 3


def plot_seeds(comparison: Comparison, split: str, path: str | Path | None = None) -> Figure | None:
    """Draw micro-F1 (accuracy for questions) of every seed, and violins where there are three or more.

    None where no method has two seeds. The figure is written to `path` if given; its ending says how.
    """
    measure = "accuracy" if comparison.labels is None else "micro_f1"
    named = [
        (picture_name(comparison, row, "\n"), [100 * value for value in row.best.values(split, measure)])
        for row in comparison.contenders
    ]
    if all(len(values) < 2 for _, values in named):
        return None
    figure = new_figure(width=5.2, height=1.1 + 0.5 * len(named))
    axis = figure.subplots()
    styles = method_styles(comparison)
    for place, (_, values) in enumerate(named):
        if not values:
            continue
        style = styles[place]
        if len(values) >= _FEWEST_FOR_VIOLIN and len(set(values)) > 1:
            shape = axis.violinplot(values, [place], orientation="horizontal", widths=0.8, showextrema=False)
            for body in shape["bodies"]:  # type: ignore[attr-defined]
                body.set(facecolor=style["color"], alpha=0.25)
        points = {"s": 28, "edgecolor": "white", "linewidth": 0.5, "zorder": 3}
        axis.scatter(values, [place] * len(values), **points, **style)  # type: ignore[arg-type]
        axis.plot([sum(values) / len(values)] * 2, [place - 0.3, place + 0.3], color=style["color"], linewidth=2)
    axis.set_yticks(range(len(named)), [plain(f"{name}\n{_seeds(values)}") for name, values in named], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(f"{'accuracy' if comparison.labels is None else 'micro-F1'} on {split}, %", fontsize=9)
    axis.grid(axis="x", alpha=0.3)
    axis.set_title(plain(comparison.title), fontsize=10)
    return saved(figure, path)


def _seeds(values: list[float]) -> str:
    return "1 seed" if len(values) == 1 else f"{len(values)} seeds"

"""How long the documents of every task are (the paper's violin plot of sequence lengths)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prefixprop.reporting.canvas import BLUE, VERMILION, new_figure, plain, saved
from prefixprop.reporting.groups import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROBERTA_LIMIT = 512


def plot_lengths(comparisons: Sequence[Comparison], path: str | Path | None = None) -> Figure | None:
    """Draw the tokens of every task's train documents, on a logarithmic scale, with RoBERTa's limit.

    None where no run recorded lengths. The figure is written to `path` if given; its ending says how.
    """
    named = [(comparison, _lengths(comparison)) for comparison in comparisons]
    named = [(comparison, lengths) for comparison, lengths in named if len(lengths) > 1]
    if not named:
        return None
    figure = new_figure(width=6.4, height=1.6 + 0.7 * len(named))
    axis = figure.subplots()
    for place, (_, lengths) in enumerate(named):
        # The density is that of the logarithms, because the axis shows these.
        logarithms = [math.log10(length) for length in lengths]
        if len(set(lengths)) > 1:
            shape = axis.violinplot(logarithms, [place], orientation="horizontal", widths=0.8, showextrema=False)
            for body in shape["bodies"]:  # type: ignore[attr-defined]
                body.set(facecolor=BLUE, alpha=0.4)
        middle = sorted(logarithms)[len(logarithms) // 2]
        axis.plot([middle] * 2, [place - 0.3, place + 0.3], color=BLUE, linewidth=2)
    axis.axvline(math.log10(ROBERTA_LIMIT), color=VERMILION, linestyle="--", linewidth=1)
    powers = range(0, math.ceil(math.log10(max(max(lengths) for _, lengths in named))) + 1)
    ticks = [base * 10**power for power in powers for base in (1, 2, 5)]
    shown = axis.get_xlim()
    ticks = [tick for tick in ticks if shown[0] <= math.log10(tick) <= shown[1]]
    axis.set_xticks([math.log10(tick) for tick in ticks], [f"{tick:,}" for tick in ticks], fontsize=8)
    names = [f"{plain(comparison.title)}\n({len(lengths):,} {comparison.items})" for comparison, lengths in named]
    axis.set_yticks(range(len(named)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(f"tokens as the model reads them (dashed: RoBERTa's limit, {ROBERTA_LIMIT})", fontsize=9)
    axis.grid(axis="x", alpha=0.3)
    return saved(figure, path)


def _lengths(comparison: Comparison) -> tuple[int, ...]:
    """Those of the run that reads the most of its documents."""
    found = [run.lengths for contender in comparison.contenders for run in contender.best.runs]
    return max(found, key=sum, default=())

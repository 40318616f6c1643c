"""How long the documents of every task are (the paper's violin plot of sequence lengths)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefixprop.report.choose.comparisons import Comparison
from prefixprop.report.figures.canvas import BLUE, VERMILION, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How many tokens RoBERTa and Longformer read.
LIMITS = {"RoBERTa": 512, "Longformer": 4096}


def plot_lengths(comparisons: Sequence[Comparison]) -> Figure | None:
    """Draw the tokens of every task's train documents, on a logarithmic scale, with the limits of models.

    None where no run recorded lengths.
    """
    # Two protocols on one task have the same documents.
    first = {(one.settings.data_name, _train_lengths(one)): one for one in reversed(comparisons)}
    named = [(one, lengths) for (_, lengths), one in reversed(first.items()) if len(lengths) > 1]
    if not named:
        return None
    figure = new_figure(width=5.6, height=1.2 + 0.7 * len(named))
    axis = figure.subplots()
    for row, (_, lengths) in enumerate(named):
        # The density is that of the logarithms, because the axis shows these.
        logarithms = [math.log10(length) for length in lengths]
        if len(set(logarithms)) > 1:
            shape = axis.violinplot(logarithms, [row], orientation="horizontal", widths=0.8, showextrema=False)
            for body in shape["bodies"]:  # type: ignore[attr-defined]
                body.set(facecolor=BLUE, alpha=0.4)
        middle = sorted(logarithms)[len(logarithms) // 2]
        axis.plot([middle] * 2, [row - 0.3, row + 0.3], color=BLUE, linewidth=2)
    for model, limit in LIMITS.items():
        axis.axvline(math.log10(limit), color=VERMILION, linestyle="--", linewidth=1)
        axis.annotate(
            f"{model}: {limit:,}",
            (math.log10(limit), 1),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=VERMILION,
        )
    powers = range(0, math.ceil(math.log10(max(max(lengths) for _, lengths in named))) + 1)
    ticks = [base * 10**power for power in powers for base in (1, 2, 5)]
    shown = axis.get_xlim()
    ticks = [tick for tick in ticks if shown[0] <= math.log10(tick) <= shown[1]]
    axis.set_xticks([math.log10(tick) for tick in ticks], [f"{tick:,}" for tick in ticks], fontsize=8)
    names = [plain(f"{comparison.title}\n{_description(comparison, lengths)}") for comparison, lengths in named]
    axis.set_yticks(range(len(named)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("tokens, as the model reads them", fontsize=9)
    axis.grid(axis="x", alpha=0.3)
    return figure


def _train_lengths(comparison: Comparison) -> tuple[int, ...]:
    """Those of the run that reads the most of its documents; empty where no run recorded them."""
    found = [run.lengths for contender in comparison.contenders for run in contender.best.runs]
    return max(found, key=sum, default=())


def _description(comparison: Comparison, lengths: Sequence[int]) -> str:
    """How many documents there are, and how many of them a short model cannot read whole."""
    limit = LIMITS["RoBERTa"]
    over = sum(length > limit for length in lengths) / len(lengths)
    return f"{len(lengths):,} {comparison.items}\n{over:.0%} over {limit}"

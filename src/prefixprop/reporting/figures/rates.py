"""How much the outcome hangs on the learning rate, per method."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from prefixprop.reporting.choose.comparisons import Comparison, Contender
from prefixprop.reporting.figures.canvas import legend_below, new_figure, plain, saved
from prefixprop.reporting.figures.method_styles import method_styles, picture_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_learning_rates(comparison: Comparison, path: str | Path | None = None) -> Figure | None:
    """Draw the measure on dev, or on folds, that checkpoints are chosen by, over the learning rates that were tried.

    None where no method was tried at two. The figure is written to `path` if given; its ending says how.
    """
    tried = {place: _by_rate(row) for place, row in enumerate(comparison.contenders)}
    tried = {place: rates for place, rates in tried.items() if len(rates) > 1}
    if not tried:
        return None
    figure = new_figure(width=5.2, height=3.6)
    axis = figure.subplots()
    styles = method_styles(comparison)
    for place, rates in tried.items():
        style, name = styles[place], picture_name(comparison, comparison.contenders[place])
        means = [statistics.fmean(values) for values in rates.values()]
        axis.plot(list(rates), means, linewidth=1.6, label=plain(name), **style)  # type: ignore[arg-type]
        for rate, values in rates.items():
            axis.scatter([rate] * len(values), values, s=10, color=style["color"], alpha=0.5)
    axis.set_xscale("log")
    measure = comparison.settings.metric.replace("micro_f1", "micro-F1")
    by_folds = [bool(comparison.contenders[place].folds) for place in tried]
    where = "left-out folds" if all(by_folds) else "dev or left-out folds" if any(by_folds) else "dev"
    axis.set(xlabel="learning rate", ylabel=f"{measure} on {where}, %")
    axis.grid(alpha=0.3)
    axis.set_title(plain(comparison.title), fontsize=10)
    legend_below(figure)
    return saved(figure, path)


def _by_rate(contender: Contender) -> dict[float, list[float]]:
    """The dev measure of every seed or fold in percent, by learning rate.

    At the alpha with the most rates, for a search tries rates at one alpha and then alphas at one rate; among equals
    at the row's.
    """
    by_alpha: dict[float, dict[float, list[float]]] = {contender.best.settings.alpha: {}}
    # Where a cross-validation tried the rates, the runs of the chosen one are no comparison.
    for trial in contender.folds or contender.trials:
        settings = trial.settings
        values = trial.values("dev", settings.metric)
        if values and settings.learning_rate is not None:
            rates = by_alpha.setdefault(settings.alpha, {})
            rates[settings.learning_rate] = [100 * value for value in values]
    return dict(sorted(max(by_alpha.values(), key=len).items()))

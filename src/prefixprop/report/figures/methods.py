"""Figures that compare the methods of a task: over seeds, over training, and over learning rates."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from prefixprop.evaluate.significance import summarise_seeds
from prefixprop.report.choose.comparisons import Comparison, Contender, Trial
from prefixprop.report.figures.canvas import legend_below, new_figure, plain, style_of
from prefixprop.runs.run import as_number
from prefixprop.settings.methods import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME_WIDTH = 28  # letters of a row's name in one line
# What a line is drawn from: by epoch or learning rate, the values of the seeds or folds.
Course = Mapping[float, list[float]]


def plot_seeds(comparison: Comparison, split: str) -> Figure | None:
    """Draw micro-F1 (accuracy for questions) of every seed, with the mean and its 95 % interval; None of one run."""
    name, title = ("accuracy", "accuracy") if comparison.labels is None else ("micro_f1", "micro-F1")
    scores = [[100 * value for value in trial.values(split, name)] for trial in comparison.trials]
    if sum(map(len, scores)) < 2:
        return None
    figure = new_figure(width=5.2, height=1.0 + 0.4 * len(scores))
    axis = figure.subplots()
    for row, (values, style) in enumerate(zip(scores, method_styles(comparison), strict=True)):
        if not values:
            continue
        summary = summarise_seeds(values)
        if summary.interval is not None:
            axis.plot(summary.interval, [row] * 2, color=style["color"], linewidth=9, alpha=0.25)
        axis.plot([summary.mean] * 2, [row - 0.3, row + 0.3], color=style["color"], linewidth=2)
        axis.scatter(values, [row] * len(values), s=26, linewidth=0, zorder=3, **style)  # type: ignore[arg-type]
    # Long names in several lines leave the points their room.
    names = [plain(textwrap.fill(comparison.short_name(row), _NAME_WIDTH)) for row in comparison.contenders]
    axis.set_yticks(range(len(scores)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(f"{title} on {split}, %", fontsize=9)
    axis.grid(axis="x", alpha=0.3)
    axis.set_title(plain(comparison.title), fontsize=10)
    return figure


def plot_calibration_course(comparison: Comparison) -> Figure | None:
    """Draw ECE on dev after every epoch: the mean over seeds, and their range.

    It is the paper's figure of ECE on ArXiv. None where no run has a history of two epochs.
    """
    courses = {row: course for row, trial in enumerate(comparison.trials) if (course := _ece_by_epoch(trial))}
    if all(len(course) < 2 for course in courses.values()):
        return None
    figure, axis = _new_lines(comparison)
    for row, course in courses.items():
        colour = _draw_means(axis, comparison, row, course, markersize=4)
        low, high = [min(values) for values in course.values()], [max(values) for values in course.values()]
        axis.fill_between(list(course), low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel="epoch", ylabel="ECE on dev (lower is better)", ylim=(0, None))
    axis.locator_params(axis="x", integer=True)
    legend_below(figure)
    return figure


def plot_learning_rates(comparison: Comparison) -> Figure | None:
    """Draw the measure on dev, or on folds, that checkpoints are chosen by, over the learning rates that were tried.

    None where no method was tried at two.
    """
    tried = {row: _score_by_rate(contender) for row, contender in enumerate(comparison.contenders)}
    tried = {row: rates for row, rates in tried.items() if len(rates) > 1}
    if not tried:
        return None
    figure, axis = _new_lines(comparison)
    for row, rates in tried.items():
        colour = _draw_means(axis, comparison, row, rates)
        for rate, values in rates.items():
            axis.scatter([rate] * len(values), values, s=10, color=colour, alpha=0.5)
    axis.set_xscale("log")
    measure = comparison.settings.metric.replace("micro_f1", "micro-F1")
    by_folds = [bool(comparison.contenders[row].folds) for row in tried]
    where = "left-out folds" if all(by_folds) else "dev or left-out folds" if any(by_folds) else "dev"
    axis.set(xlabel="learning rate", ylabel=f"{measure} on {where}, %")
    legend_below(figure)
    return figure


def method_styles(comparison: Comparison) -> list[dict[str, str]]:
    """Colour and marker of every row: that of its method, and one of the others where a row before has it already.

    A method keeps its own on the model that most rows have, and without a kernel or settings of its own, so that a
    single run on another model does not change the colours of a whole picture.
    """
    rows = comparison.contenders
    most = Counter(row.model for row in rows).most_common(1)[0][0]
    taken: dict[int, int] = {}
    plain_methods = [row.best.settings.method_row.name for row in rows]
    for row in sorted(
        range(len(rows)), key=lambda row: (rows[row].model != most, rows[row].method != plain_methods[row])
    ):
        own = list(METHODS).index(plain_methods[row])
        taken[row] = own if own not in taken.values() else max(len(METHODS) - 1, *taken.values()) + 1
    return [style_of(taken[row]) for row in range(len(rows))]


def _new_lines(comparison: Comparison) -> tuple[Figure, Axes]:
    figure = new_figure(width=5.2, height=3.6)
    axis = figure.subplots()
    axis.grid(alpha=0.3)
    axis.set_title(plain(comparison.title), fontsize=10)
    return figure, axis


def _draw_means(axis: Axes, comparison: Comparison, row: int, course: Course, markersize: float = 6) -> str:
    """Draw the line of a row, its means in its style and under its name, and return its colour."""
    name, style = comparison.short_name(comparison.contenders[row]), method_styles(comparison)[row]
    means = [statistics.fmean(values) for values in course.values()]
    axis.plot(list(course), means, linewidth=1.6, markersize=markersize, label=plain(name), **style)  # type: ignore[arg-type]
    return style["color"]


def _ece_by_epoch(trial: Trial) -> Course:
    """ECE of every run, by epoch."""
    course: dict[float, list[float]] = {}
    for run in trial.runs:
        for line in run.history:
            epoch, ece = as_number(line.get("epoch")), as_number(line.get("dev_ece"))
            if epoch is not None and ece is not None:
                course.setdefault(int(epoch), []).append(ece)
    return dict(sorted(course.items()))


def _score_by_rate(contender: Contender) -> Course:
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

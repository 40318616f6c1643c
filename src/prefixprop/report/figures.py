"""The figures of a report, listed in `RUN_FIGURES` and `COMPARISON_FIGURES`: a new one is a function and a line."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate import PredictionSet, Reliability, confusion_counts, reliability
from prefixprop.evaluate.significance import summarise_seeds
from prefixprop.report.canvas import BLUE, GREEN, VERMILION, new_axes, new_figure, plain, saved, style_of
from prefixprop.report.choose import Comparison, Row, set_name
from prefixprop.report.one_run import JudgedRun
from prefixprop.report.results import headline
from prefixprop.runs.find import as_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LIMITS = {"RoBERTa": 512, "Longformer": 4096}  # tokens that they read


class FigureKind(NamedTuple):
    """A figure of a `JudgedRun` or a `Comparison`, when there is something to draw, and what it is folded under."""

    name: str
    caption: str
    applies: Callable[[Any], bool]
    draw: Callable[[Any], Figure]
    fold: str = ""


# --- of one run -----------------------------------------------------------------------------------------------------


def plot_training(judged: JudgedRun) -> Figure:
    """Draw the loss and the metric on the dev set after every epoch."""
    history, metric = judged.run.history, headline(judged.run.settings.metric)
    epochs = [line["epoch"] for line in history]
    figure, axis = new_axes("epoch", "training loss")
    axis.yaxis.label.set_color(BLUE)
    axis.plot(epochs, [line["loss"] for line in history], color=BLUE, marker="o", markersize=3)
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="x", integer=True)
    if all(f"dev_{metric.name}" in line for line in history):
        other = axis.twinx()
        scores = [100 * line[f"dev_{metric.name}"] for line in history]
        other.plot(epochs, scores, color=VERMILION, marker="s", markersize=3)
        other.set_ylabel(f"{metric.title} on the dev set", color=VERMILION, fontsize=9)
    return figure


def plot_confusion(
    counts: ArrayLike, label_names: Sequence[str], path: str | Path | None = None, *, title: str | None = None
) -> Figure:
    """Draw how many documents of each label (rows) were predicted as each class (columns).

    `counts` is what `prefixprop.evaluate.confusion_counts` returns. Colour is the share of the label's documents,
    so that rare labels are as visible as frequent ones; cells without documents are left blank. The figure is written
    to `path` if given; its ending says how (png, pdf, svg).
    """
    table, classes = np.asarray(counts), len(label_names)
    if table.shape != (classes, classes):
        raise ValueError(f"Counts of {classes} labels must be {classes} × {classes}, but have shape {table.shape}.")
    shares = table / table.sum(axis=1, keepdims=True).clip(min=1)
    side, few = max(2.4, 0.27 * classes), classes <= 6
    figure, axis = new_axes("predicted class", "label", width=side + 2.4, height=side + 1.2, title=title)
    axis.grid(visible=False)
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.argwhere(table > 0):
        share = shares[row, column]
        text = f"{table[row, column]:,}\n{share:.0%}" if few else str(table[row, column])
        colour = "white" if share > 0.55 else "black"
        cell = axis.text(column, row, text, ha="center", va="center", fontsize=10 if few else 6, color=colour)
        cell.set_in_layout(False)  # the layout need not measure hundreds of texts that lie inside the axes
    names = [plain(textwrap.shorten(name, 24, placeholder="…") or name[:24]) for name in label_names]
    fits_beside = max(map(len, names)) * 0.07 < side / classes  # inches, at about 0.07 a letter
    axis.set_xticks(range(classes), names, rotation=0 if fits_beside else 90, fontsize=8)
    axis.set_yticks(range(classes), names, fontsize=8)
    figure.colorbar(image, ax=axis, shrink=0.8).set_label("share of the label's documents", fontsize=8)
    return saved(figure, path)


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
    figure = new_figure(width=4.8, height=5.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    used, edges = before.counts > 0, before.edges
    bars: dict[str, Any] = {"x": edges[:-1][used], "width": np.diff(edges)[used], "align": "edge"}
    accuracy, filled = before.accuracy[used], {"color": BLUE, "alpha": 0.75, "edgecolor": "white"}
    name = f"{'accuracy' if after is None else 'before scaling'}, ECE {before.expected_error:.3f}"
    upper.bar(height=accuracy, label=name, **filled, **bars)
    hatched = {"facecolor": "none", "edgecolor": VERMILION, "hatch": "////", "label": "gap to the mean confidence"}
    upper.bar(height=before.confidence[used] - accuracy, bottom=accuracy, **hatched, **bars)
    lower.bar(edges[:-1], before.counts, np.diff(edges), align="edge", **filled)
    if after is not None:
        some, scaling = after.counts > 0, "" if temperature is None else f", T = {temperature:.2f}"
        # The area says how many documents stand behind a point; an accuracy of 0 or 1 lies on the frame, over it.
        areas = 12 + 78 * after.counts[some] / after.counts.max()
        label = f"after scaling{scaling}, ECE {after.expected_error:.3f}"
        points = {"marker": "D", "color": GREEN, "edgecolor": "white", "clip_on": False, "zorder": 3, "label": label}
        upper.scatter(after.confidence[some], after.accuracy[some], s=areas, **points)
        lower.stairs(after.counts, after.edges, color=GREEN, linewidth=1.5)
    upper.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle="--", label="perfect calibration")
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy (share of right predictions)", title=plain(title or ""))
    lower.set(xlabel="confidence (probability of the predicted class)", ylabel="documents")
    lower.locator_params(axis="y", integer=True, nbins=4)
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    # Beside the axes, because with few documents any corner may hold data.
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    return saved(figure, path)


def selective_accuracy(predictions: PredictionSet) -> tuple[NDArray[Any], NDArray[Any]]:
    """The shares of answers that can be accepted, the most confident first, and the accuracy of each share.

    Answers of equal confidence are accepted together.
    """
    confidence = predictions.probabilities.max(axis=1)
    order = np.argsort(-confidence, kind="stable")
    right = (predictions.logits.argmax(axis=1) == predictions.known_labels)[order]
    counts = 1 + np.flatnonzero(np.append(np.diff(confidence[order]) < 0, True))
    return counts / len(right), right.cumsum()[counts - 1] / counts


def plot_coverage(judged: JudgedRun) -> Figure:
    """Draw the accuracy of the answers that are accepted against their share, the most confident first."""
    share, accuracy = selective_accuracy(judged.answered)
    figure, axis = new_axes("answers accepted, %", "accuracy of these, %")
    axis.plot(100 * share, 100 * accuracy, color=BLUE, linewidth=1.6)
    axis.axhline(100 * accuracy[-1], color=VERMILION, linestyle="--", linewidth=1)
    axis.set_xlim(0, 100)
    return figure


def _confusion(judged: JudgedRun) -> Figure:
    counts = confusion_counts(judged.answered.probabilities, judged.answered.known_labels)
    return plot_confusion(counts, judged.answered.label_names or (), title=judged.title)


def _reliability(judged: JudgedRun) -> Figure:
    labels, temperature = judged.answered.known_labels, judged.run.temperature
    after = reliability(judged.answered.probabilities, labels)
    if judged.predictions is None or temperature is None or temperature.value == 1:  # mixed answers are calibrated
        return plot_reliability(after, title=judged.title)
    before = reliability(judged.predictions.probabilities, labels)
    return plot_reliability(before, after, temperature=temperature.value, title=judged.title)


# --- of several runs ------------------------------------------------------------------------------------------------


def plot_seeds(comparison: Comparison) -> Figure:
    """Draw the metric of every seed, with the mean and its 95 % interval."""
    metric, split, rows = headline(comparison.settings.metric), comparison.judged_on, comparison.rows
    figure, axis = new_axes(f"{metric.title} on {set_name(split)}", "", width=5.2, height=1.0 + 0.4 * len(rows))
    for place, row in enumerate(rows):
        values, style = [100 * value for value in row.values(split, metric.name)], style_of(place)
        if values:
            summary = summarise_seeds(values)
            interval = summary.interval or (summary.mean, summary.mean)
            axis.plot(interval, [place] * 2, color=style["color"], linewidth=9, alpha=0.25)
            axis.plot([summary.mean] * 2, [place - 0.3, place + 0.3], color=style["color"], linewidth=2)
            axis.scatter(values, [place] * len(values), s=26, linewidth=0, zorder=3, **style)
    names = [plain(textwrap.fill(comparison.name(row), 28)) for row in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=8)
    axis.invert_yaxis()
    return figure


def plot_calibration_course(comparison: Comparison) -> Figure:
    """Draw ECE on the dev set after every epoch (the paper's figure of ArXiv): mean over seeds, and their range."""
    height = 3.2 + 0.17 * len(comparison.rows)
    figure, axis = new_axes("epoch", "ECE on the dev set (lower is better)", width=5.2, height=height)
    for place, row in enumerate(comparison.rows):
        if course := _ece_by_epoch(row):
            style, name = style_of(place), plain(comparison.name(row))
            means = [statistics.fmean(values) for values in course.values()]
            axis.plot(list(course), means, linewidth=1.6, markersize=3, label=name, **style)
            ends = [[choose(values) for values in course.values()] for choose in (min, max)]
            axis.fill_between(list(course), *ends, color=style["color"], alpha=0.15, linewidth=0)
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="x", integer=True)
    figure.legend(fontsize=8, loc="outside lower center", frameon=False)
    return figure


def _ece_by_epoch(row: Row) -> dict[int, list[float]]:
    course: dict[int, list[float]] = {}
    for line in (line for run in row.runs for line in run.history):
        if (ece := as_number(line.get("dev_ece"))) is not None:
            course.setdefault(int(line["epoch"]), []).append(ece)
    return dict(sorted(course.items()))


def plot_lengths(comparison: Comparison) -> Figure:
    """Draw how many training documents have how many tokens, with the limits of models."""
    lengths = np.array(_lengths(comparison)).clip(min=1)
    figure, axis = new_axes("tokens", f"training {comparison.items}")
    axis.hist(lengths, bins=np.geomspace(lengths.min(), lengths.max() + 1, 30), color=BLUE, alpha=0.75)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.axvline(float(np.median(lengths)), color=BLUE, linewidth=2, label=f"median {np.median(lengths):,.0f}")
    for (model, limit), line in zip(_LIMITS.items(), (":", "--"), strict=True):
        over = f"{(lengths > limit).mean():.0%} over {model}'s {limit:,}"
        axis.axvline(limit, color=VERMILION, linestyle=line, linewidth=1, label=over)
    figure.legend(fontsize=8, loc="outside lower center", frameon=False)
    return figure


def _lengths(comparison: Comparison) -> tuple[int, ...]:
    """Those of the run that reads the most of its documents; empty where no run recorded them."""
    return max((run.lengths for run in comparison.runs), key=sum)


def _has_answers(judged: JudgedRun) -> bool:
    return judged.predictions is not None


def _has_one_label(judged: JudgedRun) -> bool:
    return judged.predictions is not None and not judged.predictions.several_labels


RELIABILITY = FigureKind("reliability", "How often it is right, by how confident it is.", _has_answers, _reliability)
RUN_FIGURES = (
    FigureKind(
        "training",
        "Loss over training, and the metric on the dev set where there is one.",
        lambda judged: len(judged.run.history) > 1 and all("loss" in line for line in judged.run.history),
        plot_training,
    ),
    FigureKind(
        "confusion",
        "Which label is taken for which.",
        lambda judged: _has_one_label(judged) and judged.answered.label_names is not None,
        _confusion,
    ),
    RELIABILITY,
    FigureKind(
        "coverage", "Accuracy if only the most confident answers are accepted.", _has_one_label, plot_coverage
    ),
)
COMPARISON_FIGURES = (
    FigureKind("seeds", "Every seed, their mean and its 95 % interval.", lambda one: len(one.runs) > 1, plot_seeds),
    FigureKind(
        "ece-over-training",
        "Calibration error on the dev set over training; mean and range over seeds.",
        lambda one: any(len(_ece_by_epoch(row)) > 1 for row in one.rows),
        plot_calibration_course,
        "Calibration over training",
    ),
    FigureKind(
        "lengths",
        "Lengths of training documents, before they are cut.",
        lambda one: len(_lengths(one)) > 1,
        plot_lengths,
        "Lengths of documents",
    ),
)

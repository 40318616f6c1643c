"""Figures: what they share (colours, axes, how they are saved), those of a report, and the share of prefixes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from prefixprop.atomic_files import replacing_file
from prefixprop.evaluate import Reliability, confusion_counts, reliability
from prefixprop.evaluate.significance import summarise_seeds
from prefixprop.report.choose import Comparison, Row, set_name
from prefixprop.report.one_run import JudgedRun
from prefixprop.report.results import headline

if TYPE_CHECKING:  # a report of runs needs no PyTorch
    from torch import Tensor

# Of the palette of Okabe & Ito (2008), which colour-blind readers can tell apart; the markers are for print in grey.
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
_PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_LIMITS = {"RoBERTa": 512, "Longformer": 4096}  # tokens that they read
# Without dates and random names, the same figure is the same file.
_METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def style_of(index: int) -> dict[str, Any]:
    """Colour and marker of one of several lines; more lines than colours still differ in their markers."""
    return {"color": _PALETTE[index % len(_PALETTE)], "marker": _MARKERS[index % len(_MARKERS)]}


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of this size in inches."""
    return Figure(figsize=(max(width, 4.0), height), layout="constrained", dpi=150)


def new_axes(
    xlabel: str, ylabel: str, width: float = 4.8, height: float = 3.6, title: str | None = None
) -> tuple[Figure, Any]:
    """A figure with one pair of axes and a grid."""
    figure = new_figure(width, height)
    axes = figure.subplots()
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.set_title(plain(title or ""), fontsize=10)
    axes.grid(alpha=0.3)
    return figure, axes


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """Write the figure to `path`, if given, in the format its ending says, and return it."""
    if path is not None:
        ending = check_ending(path)
        with replacing_file(path) as temporary:
            _write(figure, temporary, ending)
    return figure


def svg_of(figure: Figure) -> bytes:
    """The figure as an SVG file, without a background."""
    stream = BytesIO()
    _write(figure, stream, ".svg", transparent=True)
    return stream.getvalue()


def _write(figure: Figure, target: Path | BytesIO, ending: str, transparent: bool = False) -> None:
    with rc_context({"svg.hashsalt": "prefixprop"}):
        figure.savefig(target, format=ending.removeprefix("."), metadata=_METADATA[ending], transparent=transparent)
    figure.set_layout_engine("none")  # it stays as it was laid out, which takes long, for the next format


def check_ending(path: str | Path) -> str:
    """Return the ending of a figure's name, or raise if no format has it; for who has long work to do before."""
    ending = Path(path).suffix.lower()
    if ending not in _METADATA:
        raise ValueError(f"{path}: figures are written as {', '.join(_METADATA)}; choose a name with such an ending.")
    return ending


def plain(text: str) -> str:
    """Return a text such as a label's name so that matplotlib shows it as it is, not as a formula."""
    return text.replace("$", r"\$")


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


def plot_run_reliability(judged: JudgedRun, title: str = "") -> Figure:
    """Draw the reliability of a run's answers, before and after scaling; mixed answers are calibrated already."""
    labels, temperature = judged.answered.known_labels, judged.run.temperature
    after = reliability(judged.answered.probabilities, labels)
    if judged.predictions is None or temperature is None or temperature.value == 1:
        return plot_reliability(after, title=title)
    before = reliability(judged.predictions.probabilities, labels)
    return plot_reliability(before, after, temperature=temperature.value, title=title)


# --- of several runs ------------------------------------------------------------------------------------------------


def plot_seeds(comparison: Comparison) -> Figure:
    """Draw the metric of every seed, with the mean and its 95 % interval."""
    metric, split, rows = headline(comparison.settings.metric), comparison.judged_on, comparison.rows
    names = [plain(textwrap.fill(comparison.name(row), 34)) for row in rows]
    height = 1.0 + 0.2 * len(rows) + 0.15 * len("\n".join(names).splitlines())
    figure, axis = new_axes(f"{metric.title} on {set_name(split)}", "", width=5.6, height=height)
    for place, row in enumerate(rows):
        values, style = [100 * value for value in row.values(split, metric.name)], style_of(place)
        if values:
            summary = summarise_seeds(values)
            interval = summary.interval or (summary.mean, summary.mean)
            axis.plot(interval, [place] * 2, color=style["color"], linewidth=9, alpha=0.25)
            axis.plot([summary.mean] * 2, [place - 0.3, place + 0.3], color=style["color"], linewidth=2)
            axis.scatter(values, [place] * len(values), s=26, linewidth=0, zorder=3, **style)
    axis.set_yticks(range(len(rows)), names, fontsize=8)
    axis.invert_yaxis()
    return figure


def plot_calibration_course(comparison: Comparison) -> Figure:
    """Draw ECE on the dev set after every epoch (the paper's figure of ArXiv): mean over seeds, and their range.

    The ranges of more rows than there are colours would hide the means.
    """
    few = len(comparison.rows) <= len(_PALETTE)
    height = 3.2 + 0.17 * len(comparison.rows)
    figure, axis = new_axes("epoch", "ECE on the dev set (lower is better)", width=5.2, height=height)
    for place, row in enumerate(comparison.rows):
        course, style = _ece_by_epoch(row), style_of(place)
        if len(course):
            name, colour = plain(comparison.name(row)), style["color"]
            axis.plot(course.index, course["mean"], linewidth=1.6, markersize=3, label=name, **style)
            if few:
                axis.fill_between(course.index, course["min"], course["max"], color=colour, alpha=0.15, linewidth=0)
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="x", integer=True)
    figure.legend(fontsize=8, loc="outside lower center", frameon=False)
    return figure


def _ece_by_epoch(row: Row) -> pd.DataFrame:
    """The mean, the least and the most of all seeds; empty where no run judged its epochs."""
    lines = pd.DataFrame([line for run in row.runs for line in run.history], columns=["epoch", "dev_ece"])
    return lines.dropna().groupby("epoch")["dev_ece"].agg(["mean", "min", "max"])


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


# --- which there are ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportFigure:
    """A figure that is drawn when it is needed, and once; `name` is a file's name without its ending.

    `fold` is what the page folds it away under, if anything.
    """

    name: str
    caption: str
    draw: Callable[[], Figure]
    fold: str = ""

    @cached_property
    def drawn(self) -> Figure:
        return self.draw()


def run_figures(judged: JudgedRun, name: str) -> Iterator[ReportFigure]:
    """What there is to draw of one run."""
    history, found = judged.run.history, judged.predictions
    if len(history) > 1 and all("loss" in line for line in history):
        caption = "Loss over training, and the metric on the dev set where there is one."
        yield ReportFigure(f"{name}-training", caption, partial(plot_training, judged))
    if found is not None and found.label_names is not None and not found.several_labels:
        counts = confusion_counts(found.probabilities, found.known_labels)
        draw = partial(plot_confusion, counts, found.label_names)
        yield ReportFigure(f"{name}-confusion", "Which label is taken for which.", draw)
    yield from reliability_figure(judged, name)


def reliability_figure(judged: JudgedRun, name: str, title: str = "", fold: str = "") -> Iterator[ReportFigure]:
    """Of a run with predictions; `title` says which run it is."""
    if judged.predictions is not None:
        caption = f"{title}{': ' * bool(title)}How often it is right, by how confident it is."
        yield ReportFigure(f"{name}-reliability", caption, partial(plot_run_reliability, judged, title), fold)


def comparison_figures(comparison: Comparison, name: str) -> Iterator[ReportFigure]:
    """What there is to draw of runs that are compared, or of the only one."""
    if len(comparison.runs) > 1:
        caption = "Every seed, their mean and its 95 % interval."
        yield ReportFigure(f"{name}-seeds", caption, partial(plot_seeds, comparison))
    if any(len(_ece_by_epoch(row)) > 1 for row in comparison.rows):
        caption = "ECE on the dev set over training: mean over seeds, with the range if there are few methods."
        draw = partial(plot_calibration_course, comparison)
        yield ReportFigure(f"{name}-ece-over-training", caption, draw, "Calibration over training")
    if len(_lengths(comparison)) > 1:
        caption = "Lengths of training documents, before they are cut."
        draw = partial(plot_lengths, comparison)
        yield ReportFigure(f"{name}-lengths", caption, draw, "Lengths of documents")


# --- what prefixes do: λ, the share of attention that they get -----------------------------------------------------


def prefix_share(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The share of the active prefix in the attention of one document, [layers, heads, real tokens].

    `inputs` is one tokenized document, a batch of one. Each value is what softmax gives to all prefix keys together,
    the λ of the paper's appendix; the attentions that a model returns leave it out, so it is what they lack to one.
    """
    import torch

    from prefixprop.tuners.layer import PrefixLayer

    layer = next((module for module in model.modules() if isinstance(module, PrefixLayer)), None)
    active = None if layer is None else layer.active_prefix()
    if active is None:
        raise ValueError("The model has no active prefix, so there is no share to measure.")
    if active.config.kernel is not None:
        raise ValueError("With a kernel the prefix has no share of the softmax: alpha takes its place; plot that.")
    if len(inputs["input_ids"]) != 1:
        raise ValueError(f"Pass one document at a time, not {len(inputs['input_ids'])}.")

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    implementation, was_training = base.config._attn_implementation, model.training
    base.set_attn_implementation("eager")  # the others return no attentions
    model.eval()
    try:
        with torch.no_grad():
            output = model(**inputs, output_attentions=True)
    finally:
        base.set_attn_implementation(implementation)
        model.train(was_training)

    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))[0].bool()
    shares = []
    for index, weights in enumerate(output.attentions):
        kept = weights[0].float().sum(dim=-1)  # [heads, tokens]
        if output.get("global_attentions") is not None:
            # Longformer shows the rows of global tokens apart, and as zeros here.
            everywhere = (kept == 0).all(dim=0) & real
            kept[:, everywhere] = output.global_attentions[index][0].float().sum(dim=1)[:, : int(everywhere.sum())]
        shares.append((1 - kept)[:, real])
    return torch.stack(shares).clamp(0, 1)

"""Pictures of both benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixprop.benchmarking.attention import OURS, PASSES, THEIRS, AttentionResult
from prefixprop.benchmarking.runtime import HUGGING_FACE, PAPER, RuntimeResult
from prefixprop.benchmarking.timing import Timing
from prefixprop.report.figures.canvas import BLUE, VERMILION, new_figure, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: dict[str, dict[str, Any]] = {
    THEIRS: {"color": VERMILION, "marker": "s", "linestyle": "--"},
    OURS: {"color": BLUE, "marker": "o", "linestyle": "-"},
}
TITLES = {"forward": "forward", "step": "training step, frozen backbone"}


def plot_attention(results: Sequence[AttentionResult], path: str | Path | None = None, title: str = "") -> Figure:
    """Draw a document's time, and a batch's peak memory where it is known, against the length, both axes logarithmic.

    Dotted is linear growth, from our shortest length on. All batches have the same number of tokens, so memory that
    grows linearly with a document's length stays level.
    """
    with_memory = any(result.ours.peak_gib is not None for result in results)
    figure = new_figure(width=8.4, height=6.4 if with_memory else 3.8)
    axes = figure.subplots(2 if with_memory else 1, len(PASSES), sharex=True, sharey="row", squeeze=False)
    for column, name in enumerate(PASSES):
        of_pass = [result for result in results if result.name == name]
        upper = axes[0, column]
        upper.set_title(TITLES[name], fontsize=10)
        _draw_lines(upper, of_pass, lambda timing, batch: 1000 * timing.median / batch)
        _draw_linear(upper, of_pass)
        if with_memory:
            _draw_lines(axes[1, column], of_pass, lambda timing, batch: timing.peak_gib)
    axes[0, 0].set_ylabel("time of a document (ms)")
    if with_memory:
        tokens = results[0].case.batch * results[0].case.length
        axes[1, 0].set_ylabel(f"peak memory (GiB),\nbatches of {tokens:,} tokens")
    _finish_axes(axes, sorted({result.case.length for result in results}))
    if title:
        figure.suptitle(title, fontsize=10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=3, frameon=False)
    return saved(figure, path)


def _draw_lines(axis: Axes, results: Sequence[AttentionResult], value: Any) -> None:
    for name in (THEIRS, OURS):
        timed = [(result.case, result.ours if name == OURS else result.theirs) for result in results]
        points = [(case.length, value(timing, case.batch)) for case, timing in timed if _is_complete(timing)]
        if points:
            axis.plot(*zip(*points, strict=True), label=name, linewidth=1.8, **STYLES[name])


def _draw_linear(axis: Axes, results: Sequence[AttentionResult]) -> None:
    start = next((result for result in results if _is_complete(result.ours)), None)
    if start is None:
        return
    lengths = [result.case.length for result in results]
    per_token = 1000 * start.ours.median / start.case.batch / start.case.length
    heights = [per_token * length for length in lengths]
    axis.plot(lengths, heights, color="black", linewidth=1, linestyle=":", label="linear growth")


def _is_complete(timing: Timing | None) -> bool:
    return timing is not None and not timing.out_of_memory


def _finish_axes(axes: Any, lengths: Sequence[int]) -> None:
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=35, fontsize=8)
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_major_locator(_decades())
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("tokens of a document")


def _decades() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20)


def plot_runtime(
    results: Sequence[RuntimeResult], path: str | Path | None = None, title: str = "", show_paper: bool = True
) -> Figure:
    """Draw each method's run time over no PEFT's, with its 95 % interval, and what the paper reports beside it.

    Hugging Face's attention is left out: it is so much slower that no other difference would be seen.
    """
    results = [result for result in results if result.method != HUGGING_FACE]
    figure = new_figure(width=6.4, height=1.6 + 0.45 * len(results))
    axis = figure.subplots()
    names = [result.method for result in results]
    for index, result in enumerate(results):
        if result.relative is not None and result.low is not None and result.high is not None:
            ends = [
                [_percent(result.relative) - _percent(result.low)],
                [_percent(result.high) - _percent(result.relative)],
            ]
            label = "measured, 95 % interval" if index == 0 else None
            axis.errorbar(
                [_percent(result.relative)], [index], xerr=ends, color=BLUE, fmt="o", capsize=4, label=label
            )
    if show_paper:
        known = [(index, PAPER[name]) for index, name in enumerate(names) if name in PAPER]
        axis.scatter(
            [_percent(value) for _, value in known],
            [index + 0.22 for index, _ in known],
            color=VERMILION,
            marker="D",
            s=28,
            facecolor="none",
            label="paper, inference on a GTX 1080 Ti",
        )
    axis.axvline(0, color="black", linewidth=1, linestyle=":")
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlabel("run time over no PEFT (%)")
    axis.grid(alpha=0.3, axis="x")
    if title:
        figure.suptitle(title, fontsize=9)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    return saved(figure, path)


def _percent(relative: float) -> float:
    return 100 * (relative - 1)

"""What the figures draw, and the share of attention that prefixes get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection

from prefixprop.evaluate import Reliability, reliability
from prefixprop.report import plot_confusion, plot_reliability, prefix_share
from prefixprop.report.choose import compare
from prefixprop.report.figures import (
    comparison_figures,
    plot_calibration_course,
    plot_seeds,
    plot_training,
    run_figures,
)
from prefixprop.report.one_run import JudgedRun
from prefixprop.runs.find import Run, read_run
from prefixprop.train import RunSettings

from tiny import adapt, batch, both_methods, every_family, tiny_model
from tiny_runs import make_results


def found(sharpened: float) -> Reliability:
    confidences = [0.62, 0.68, 0.92, 0.95, 0.98]
    return reliability([[1 - c - sharpened, c + sharpened] for c in confidences], [1, 0, 1, 1, 1], bins=10)


BEFORE, AFTER = found(0.0), found(-0.1)


def a_run(folder: Path, **settings: Any) -> Run:
    return read_run(make_results(folder / f"run{len(list(folder.iterdir()))}", **settings))


@pytest.mark.parametrize(
    ("counts", "shares", "cells"),
    [
        (
            [[30, 10], [0, 1200]],
            [[0.75, 0.25], [0, 1]],
            {(0, 0): "30\n75%", (0, 1): "10\n25%", (1, 1): "1,200\n100%"},
        ),
        ([[2, 0], [0, 0]], [[1, 0], [0, 0]], {(0, 0): "2\n100%"}),
    ],
)
def test_confusion_shows_counts_and_shares(counts: list, shares: list, cells: dict, tmp_path: Path) -> None:
    figure = plot_confusion(counts, ["$x$ and $", "_{y}"], tmp_path / "confusion.png")  # no formulas
    axis = figure.axes[0]
    assert {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in axis.texts} == cells
    np.testing.assert_allclose(axis.images[0].get_array(), shares)
    with pytest.raises(ValueError, match=r"Counts of 3 labels must be 3 × 3, but have shape \(2, 2\)"):
        plot_confusion(counts, ["a", "b", "c"])


def test_reliability_before_and_after_scaling() -> None:
    figure = plot_reliability(BEFORE, AFTER, temperature=1.526)
    upper, lower = figure.axes
    bars = [(*bar.get_xy(), bar.get_width(), bar.get_height()) for bar in upper.patches if hasattr(bar, "get_xy")]
    accuracy_and_gaps = [(0.6, 0, 0.1, 0.5), (0.9, 0, 0.1, 1.0), (0.6, 0.5, 0.1, 0.15), (0.9, 1.0, 0.1, -0.05)]
    np.testing.assert_allclose(bars, accuracy_and_gaps)
    (points,) = upper.collections
    used = AFTER.counts > 0
    np.testing.assert_allclose(points.get_offsets(), np.column_stack([AFTER.confidence, AFTER.accuracy])[used])
    assert lower.patches[-1].get_data().values.tolist() == AFTER.counts.tolist()
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "before scaling, ECE 0.090",
        "gap to the mean confidence",
        f"after scaling, T = 1.53, ECE {AFTER.expected_error:.3f}",
        "perfect calibration",
    }


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_same_figure_is_the_same_file(tmp_path: Path, ending: str, start: bytes) -> None:
    first, second = tmp_path / "new" / f"first.{ending}", tmp_path / f"second.{ending}"
    for path in (first, second):
        plot_reliability(BEFORE, AFTER, path, title="costs $5 or $6")
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]
    with pytest.raises(ValueError, match=r"diagram: figures are written as \.png, \.svg, \.pdf"):
        plot_reliability(BEFORE, path=tmp_path / "diagram")


def test_loss_and_dev_metric_over_training(tmp_path: Path) -> None:
    history = tuple({"epoch": epoch, "loss": 1 / epoch, "dev_micro_f1": 0.1 * epoch} for epoch in (1, 2, 3))
    run = Run(tmp_path, RunSettings(task="arxiv"), {}, history=history)
    loss, score = (axis.lines[0].get_ydata() for axis in plot_training(JudgedRun(run, "test", "documents")).axes)
    np.testing.assert_allclose(loss, [1, 1 / 2, 1 / 3])
    np.testing.assert_allclose(score, [10, 20, 30])


def test_every_seed_is_a_point_even_of_methods_with_one(tmp_path: Path) -> None:
    runs = [*(a_run(tmp_path, seed=seed) for seed in (1, 2, 3)), a_run(tmp_path, method="lora")]
    (comparison,) = compare(runs)
    axis = plot_seeds(comparison).axes[0]
    points = [len(drawn.get_offsets()) for drawn in axis.collections if isinstance(drawn, PathCollection)]
    assert sorted(points) == [1, 3]
    course = plot_calibration_course(comparison).axes[0].lines
    np.testing.assert_allclose([line.get_ydata() for line in course], [[0.05, 0.10, 0.15]] * 2)


def test_figures_are_drawn_where_a_run_has_the_data(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for one, of_run, compared in (
        (run, ["x-confusion", "x-reliability"], ["x-ece-over-training", "x-lengths"]),
        (Run(run.path, run.settings, run.metrics), [], []),
    ):
        assert [figure.name for figure in run_figures(JudgedRun(one, "test", "documents"), "x")] == of_run
        assert [figure.name for figure in comparison_figures(compare([one])[0], "x")] == compared


# --- prefixes -------------------------------------------------------------------------------------------------------


@both_methods
@every_family
def test_share_of_a_zero_prefix_is_its_part_of_equal_scores(family: str, method: str) -> None:
    """With all queries zero every score is equal, so the prefix gets j of the keys a row sees."""
    model = tiny_model(family, **({"local_attention": 64} if family == "modernbert" else {}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name:
                parameter.zero_()
            elif "Wqkv" in name:
                parameter[:32].zero_()
    adapted, inputs = adapt(model, method, length=4).train(), batch(model, [11])
    before = adapted.get_base_model().config._attn_implementation
    share = prefix_share(adapted, inputs)
    assert adapted.training and adapted.get_base_model().config._attn_implementation == before
    assert share.shape == (3, 4, 11)
    if family != "longformer":
        torch.testing.assert_close(share, torch.full((3, 4, 11), 4 / 15))
        return
    everywhere = [0]  # [CLS]
    for layer, reach in enumerate((4, 8, 4)):
        for token in range(11):
            near = {other for other in range(11) if abs(other - token) <= reach} | set(everywhere)
            seen = 11 if token in everywhere else len(near)
            expected = torch.full((4,), 4 / (4 + seen))
            torch.testing.assert_close(share[layer, :, token], expected)


def test_share_needs_an_active_softmax_prefix_and_one_document() -> None:
    model = adapt(tiny_model(), "propagation")
    with pytest.raises(ValueError, match="one document at a time, not 2"):
        prefix_share(model, batch(model, [9, 5]))
    with model.disable_adapter(), pytest.raises(ValueError, match="no active prefix"):
        prefix_share(model, batch(model, [9]))
    split = adapt(tiny_model(), "propagation", kernel="exp")
    with pytest.raises(ValueError, match="alpha takes its place"):
        prefix_share(split, batch(split, [9]))

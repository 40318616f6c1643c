"""What the figures draw: confusion, reliability, learning rates and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from prefixprop.evaluate import Reliability, reliability
from prefixprop.report import plot_confusion, plot_reliability
from prefixprop.report.choose.comparisons import compare
from prefixprop.report.figures.methods import plot_learning_rates, plot_seeds
from prefixprop.runs.find import read_run
from prefixprop.runs.run import Run

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
    with pytest.raises(ValueError, match=r"Counts of 3 labels must be 3 × 3, but their shape is \(2, 2\)"):
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
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "before scaling, ECE 0.090",
        "gap to the mean confidence",
        f"after scaling, T = 1.53, ECE {AFTER.expected_error:.3f}",
        "perfect calibration",
    ]


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_same_figure_is_the_same_file(tmp_path: Path, ending: str, start: bytes) -> None:
    first, second = tmp_path / "new" / f"first.{ending}", tmp_path / f"second.{ending}"
    for path in (first, second):
        plot_reliability(BEFORE, AFTER, path, title="costs $5 or $6")
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]
    with pytest.raises(ValueError, match=r"diagram: pictures are written as \.png, \.svg, \.pdf"):
        plot_reliability(BEFORE, path=tmp_path / "diagram")


def test_learning_rates_are_shown_at_the_alpha_at_which_they_were_tried(tmp_path: Path) -> None:
    search = [a_run(tmp_path, kernel="exp", alpha=5e-3, learning_rate=rate) for rate in (1e-2, 5e-3, 1e-3)]
    chosen = [a_run(tmp_path, kernel="exp", alpha=4e-2, learning_rate=5e-3, seed=seed) for seed in (1, 2)]
    (comparison,) = compare([*search, *chosen])
    assert comparison.contenders[0].best.settings.alpha == 4e-2
    figure = plot_learning_rates(comparison)
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_xdata()) == [1e-3, 5e-3, 1e-2]


def test_every_seed_is_a_point_even_of_methods_with_one(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, seed=seed) for seed in (1, 2, 3)]
    assert plot_seeds(compare(runs[:1])[0], "test") is None
    figure = plot_seeds(compare([*runs, a_run(tmp_path, method="lora")])[0], "test")
    assert figure is not None
    points = [len(drawn.get_offsets()) for drawn in figure.axes[0].collections if isinstance(drawn, PathCollection)]
    assert sorted(points) == [1, 3]

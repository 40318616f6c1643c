"""The reliability diagram draws what `reliability` found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prefixprop.evaluate import Reliability, reliability
from prefixprop.report import plot_reliability

CONFIDENCES = [0.62, 0.68, 0.92, 0.95, 0.98]


def found(labels: list[int], sharpened: float = 0.0) -> Reliability:
    return reliability([[1 - c - sharpened, c + sharpened] for c in CONFIDENCES], labels, bins=10)


BEFORE, AFTER = found([1, 0, 1, 1, 1]), found([1, 0, 1, 1, 1], sharpened=-0.1)


def rectangles(axis) -> list[tuple[float, ...]]:
    """Left, bottom, width and height of every bar."""
    return [(*bar.get_xy(), bar.get_width(), bar.get_height()) for bar in axis.patches if hasattr(bar, "get_xy")]


def legend(figure) -> list[str]:
    (only,) = figure.legends
    return [text.get_text() for text in only.get_texts()]


def test_bars_gaps_and_histogram() -> None:
    figure = plot_reliability(BEFORE, title="costs $5 or $6")
    upper, lower = figure.axes
    expected = [(0.6, 0, 0.1, 0.5), (0.9, 0, 0.1, 1.0), (0.6, 0.5, 0.1, 0.15), (0.9, 1.0, 0.1, -0.05)]
    np.testing.assert_allclose(rectangles(upper), expected)
    heights = [height for *_, height in rectangles(lower)]
    assert heights == [0, 0, 0, 0, 0, 0, 2, 0, 0, 3]
    assert legend(figure) == ["accuracy, ECE 0.090", "gap to the mean confidence", "perfect calibration"]
    assert "accuracy" in upper.get_ylabel() and "confidence" in lower.get_xlabel()
    assert lower.get_ylabel() == "documents"


def test_after_scaling_is_drawn_over_it() -> None:
    figure = plot_reliability(BEFORE, AFTER, temperature=1.526)
    upper, lower = figure.axes
    (points,) = upper.collections
    used = AFTER.counts > 0
    np.testing.assert_allclose(points.get_offsets(), np.column_stack([AFTER.confidence, AFTER.accuracy])[used])
    areas = points.get_sizes()
    assert (np.argsort(areas) == np.argsort(AFTER.counts[used])).all()
    assert lower.patches[-1].get_data().values.tolist() == AFTER.counts.tolist()
    assert legend(figure) == [
        "before scaling, ECE 0.090",
        "gap to the mean confidence",
        f"after scaling, T = 1.53, ECE {AFTER.expected_error:.3f}",
        "perfect calibration",
    ]
    assert legend(plot_reliability(BEFORE, AFTER))[2].startswith("after scaling, ECE")


def test_nothing_is_cut_off() -> None:
    figure = plot_reliability(BEFORE, AFTER, temperature=100.0, title="newsgroups, test, prefix-propagation")
    figure.canvas.draw()
    shown = figure.get_window_extent()
    for part in (*figure.legends, *figure.axes):
        box = part.get_tightbbox()
        assert shown.x0 <= box.x0 and box.x1 <= shown.x1 and shown.y0 <= box.y0 and box.y1 <= shown.y1


def test_bins_of_unequal_width() -> None:
    adaptive = reliability([[1 - c, c] for c in CONFIDENCES], [1, 0, 1, 1, 1], bins=2, adaptive=True)
    upper, _ = plot_reliability(adaptive).axes
    left, _, width, _ = rectangles(upper)[0]
    assert (left, width) == (0, pytest.approx(adaptive.edges[1]))


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_same_picture_is_the_same_file(tmp_path: Path, ending: str, start: bytes) -> None:
    first, second = tmp_path / "new" / f"first.{ending}", tmp_path / f"second.{ending}"
    for path in (first, second):
        plot_reliability(BEFORE, AFTER, path, title="dev")
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]


@pytest.mark.parametrize("name", ["diagram.jpeg", "diagram"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: pictures are written as \.png, \.svg, \.pdf"):
        plot_reliability(BEFORE, path=tmp_path / name)
    assert not list(tmp_path.iterdir())

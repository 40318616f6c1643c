from __future__ import annotations

import sys

import pytest

from prefixprop.report.figures.canvas import legend_below, new_figure


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'prefixprop\[plots\]'"):
        new_figure(4, 3)


def test_a_long_legend_leaves_the_axes_their_room() -> None:
    heights = []
    for lines in (2, 9):
        figure = new_figure(5.2, 3.6)
        axis = figure.subplots()
        for number in range(lines):
            axis.plot(
                [1, 2], [number, number], label=f"a method with a name that is too long for two columns, {number}"
            )
        axis.set_ylabel("a label as long as the axis is high")
        legend_below(figure)
        figure.draw_without_rendering()
        heights.append(axis.get_window_extent().height / figure.dpi)
        box = axis.yaxis.label.get_window_extent()
        assert box.y0 >= 0 and box.y1 <= figure.bbox.height
    assert heights[1] == pytest.approx(heights[0], abs=0.25)

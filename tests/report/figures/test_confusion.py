from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest

from prefixprop.report import plot_confusion


def cells(axis) -> dict[tuple[float, float], str]:
    """The text of every cell by (row, column)."""
    return {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in axis.texts}


def test_two_classes_show_counts_and_shares() -> None:
    figure = plot_confusion([[30, 10], [0, 1200]], ["no", "yes"], title="dev")
    axis = figure.axes[0]
    assert cells(axis) == {(0, 0): "30\n75%", (0, 1): "10\n25%", (1, 1): "1,200\n100%"}
    np.testing.assert_allclose(axis.images[0].get_array(), [[0.75, 0.25], [0, 1]])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["no", "yes"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("predicted class", "label")
    assert figure.axes[1].get_ylabel() == "share of the label's documents"


def test_twenty_classes_fit_into_their_cells() -> None:
    counts = np.random.default_rng(0).integers(1, 400, size=(20, 20))
    figure = plot_confusion(counts, [f"comp.sys.number.{number}.hardware.and.more" for number in range(20)])
    figure.canvas.draw()
    axis = figure.axes[0]
    assert len(axis.texts) == 400
    cell = axis.transData.transform([[0, 0], [1, 1]])
    width, height = np.abs(cell[1] - cell[0])
    boxes = [text.get_window_extent() for text in axis.texts]
    assert max(box.width for box in boxes) < width and max(box.height for box in boxes) < height
    names = [label.get_window_extent() for label in axis.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(names))
    assert all(label.get_text().endswith("…") for label in axis.get_xticklabels())


def test_a_label_without_documents_and_names_like_formulas() -> None:
    figure = plot_confusion([[2, 0], [0, 0]], ["$x$ and $", "_{y}"])
    figure.savefig(io.BytesIO(), format="png")
    assert cells(figure.axes[0]) == {(0, 0): "2\n100%"}
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), [[1, 0], [0, 0]])


def test_counts_must_fit_the_names() -> None:
    with pytest.raises(ValueError, match=r"Counts of 3 labels must be 3 × 3, but their shape is \(2, 2\)"):
        plot_confusion([[1, 0], [0, 1]], ["a", "b", "c"])

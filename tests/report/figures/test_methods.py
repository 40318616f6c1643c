"""Figures that compare methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.collections import PathCollection

from prefixprop.report.choose.comparisons import compare
from prefixprop.report.figures.canvas import style_of
from prefixprop.report.figures.methods import method_styles, plot_learning_rates, plot_seeds
from prefixprop.runs.find import read_run
from prefixprop.runs.run import Run

from tiny_runs import make_results


def a_run(folder: Path, fold: int | None = None, **settings: Any) -> Run:
    folds = None if fold is None else 3
    return read_run(make_results(folder / f"run{len(list(folder.iterdir()))}", fold=fold, folds=folds, **settings))


def test_learning_rates_are_shown_at_the_alpha_at_which_they_were_tried(tmp_path: Path) -> None:
    search = [a_run(tmp_path, kernel="exp", alpha=5e-3, learning_rate=rate) for rate in (1e-2, 5e-3, 1e-3)]
    chosen = [a_run(tmp_path, kernel="exp", alpha=4e-2, learning_rate=5e-3, seed=seed) for seed in (1, 2)]
    (comparison,) = compare([*search, *chosen])
    assert comparison.contenders[0].best.settings.alpha == 4e-2
    figure = plot_learning_rates(comparison)
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_xdata()) == [1e-3, 5e-3, 1e-2]


def test_learning_rates_tried_on_folds_are_not_shown_as_those_of_dev(tmp_path: Path) -> None:
    folds = [a_run(tmp_path, 0, learning_rate=rate) for rate in (1e-2, 5e-3)]
    final = a_run(tmp_path, learning_rate=5e-3)
    searched = [a_run(tmp_path, learning_rate=rate, method="lora") for rate in (1e-3, 5e-4)]
    labels = []
    for runs in ([*folds, final], searched, [*folds, final, *searched]):
        figure = plot_learning_rates(*compare(runs))
        assert figure is not None
        labels.append(figure.axes[0].get_ylabel())
    assert labels == ["micro-F1 on left-out folds, %", "micro-F1 on dev, %", "micro-F1 on dev or left-out folds, %"]


def test_a_method_keeps_its_colour_beside_a_better_row_with_a_kernel(tmp_path: Path) -> None:
    better = a_run(tmp_path, kernel="exp", skill=3.0)
    (comparison,) = compare([better, a_run(tmp_path, skill=0.2)])
    assert [row.method for row in comparison.contenders] == ["prefix-propagation, exp kernel", "prefix-propagation"]
    assert method_styles(comparison)[1] == style_of(0) != method_styles(comparison)[0]


def test_every_seed_is_a_point_even_of_methods_with_one(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, seed=seed) for seed in (1, 2, 3)]
    assert plot_seeds(compare(runs[:1])[0], "test") is None
    figure = plot_seeds(compare([*runs, a_run(tmp_path, method="lora")])[0], "test")
    assert figure is not None
    points = [len(drawn.get_offsets()) for drawn in figure.axes[0].collections if isinstance(drawn, PathCollection)]
    assert sorted(points) == [1, 3]

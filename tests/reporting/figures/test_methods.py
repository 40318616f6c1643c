"""Figures that compare methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefixprop.reporting.choose.comparisons import compare
from prefixprop.reporting.figures.methods import plot_learning_rates
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

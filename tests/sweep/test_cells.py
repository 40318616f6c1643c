"""Which runs a cell asks for: the searched axes, one after the other, then the seeds; and what runs are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefixprop.sweep import Cell, cell_progress, run_name
from prefixprop.train import RunSettings, override

BASE = RunSettings(task="hyperpartisan", kernel="exp", learning_rate=1e-2, alpha=5e-3)
CELL = Cell("kernel", BASE, {"learning_rate": (1e-2, 1e-3, 5e-4), "alpha": (5e-3, 1e-2)}, seeds=(1, 2, 3))
JUDGES = tuple({"seed": seed, "folds": 2, "fold": fold} for seed in (1, 2) for fold in (0, 1))
JUDGED = replace(CELL, judges=JUDGES)

Scores = dict[str, float | None]


def at(learning_rate: float, alpha: float = 5e-3, seed: int = 1) -> str:
    return run_name(override(BASE, {"learning_rate": learning_rate, "alpha": alpha, "seed": seed}))


def judge_names(learning_rate: float, alpha: float = 5e-3) -> list[str]:
    candidate = override(BASE, {"learning_rate": learning_rate, "alpha": alpha})
    return [run_name(override(candidate, judge)) for judge in JUDGES]


def test_the_papers_order() -> None:
    scores: Scores = {}
    first = cell_progress(CELL, scores)
    assert list(first.requested) == [at(1e-2), at(1e-3), at(5e-4)]
    assert first.stage == "learning_rate" and not first.final

    scores |= {at(1e-2): 0.7, at(1e-3): 0.9, at(5e-4): 0.8}
    second = cell_progress(CELL, scores)
    # The first alpha at the chosen learning rate has been run already.
    assert second.requested.keys() - scores.keys() == {at(1e-3, 1e-2)} and second.stage == "alpha"

    scores[at(1e-3, 1e-2)] = 0.95
    last = cell_progress(CELL, scores)
    assert list(last.final) == [at(1e-3, 1e-2, seed) for seed in (1, 2, 3)]
    assert last.stage == "seeds" and len(last.requested) == CELL.size == 6


@pytest.mark.parametrize(
    ("found", "stage", "chosen"),
    [
        ((0.7, "missing", 0.8), "learning_rate", None),  # nothing is chosen before all are known
        ((None, 0.1, 0.05), "alpha", 1e-3),  # a failed run is not chosen
        ((0.7, 0.9, 0.9), "alpha", 1e-3),  # of equals, the first is chosen
        ((None, None, None), "learning_rate", None),
    ],
)
def test_what_is_chosen(found: tuple[float | str | None, ...], stage: str, chosen: float | None) -> None:
    scores = {at(rate): score for rate, score in zip((1e-2, 1e-3, 5e-4), found, strict=True) if score != "missing"}
    progress = cell_progress(CELL, scores)
    assert progress.stage == stage and progress.stuck == (set(found) == {None}) and not progress.final
    if chosen is not None:
        assert list(progress.requested.values())[-1].learning_rate == chosen


@pytest.mark.parametrize("searched", [{}, {"learning_rate": (1e-2,)}])
def test_without_values_to_choose_from_the_seeds_are_run(searched: dict[str, tuple[float]]) -> None:
    cell = replace(JUDGED, searched=searched, seeds=(4, 5))
    progress = cell_progress(cell, {})
    assert [run.seed for run in progress.final.values()] == [4, 5]
    assert progress.stage == "seeds" and len(progress.requested) == cell.size == 2


def test_candidates_are_judged_by_the_mean_of_their_judges() -> None:
    scores: Scores = {}
    first = cell_progress(JUDGED, scores)
    assert list(first.requested) == [name for rate in (1e-2, 1e-3, 5e-4) for name in judge_names(rate)]
    # The best single run is not the one of the best mean.
    scores |= dict(zip(judge_names(1e-2), (1.0, 0.1, 0.1, 0.1), strict=True))
    scores |= dict(zip(judge_names(1e-3), (0.6, 0.7, 0.6, 0.7), strict=True))
    scores |= dict(zip(judge_names(5e-4)[:3], (0.9, 0.9, 0.9), strict=True))
    waiting = cell_progress(JUDGED, scores)
    assert waiting.stage == "learning_rate"
    assert [candidate.score for candidate in waiting.candidates] == [pytest.approx(0.325), pytest.approx(0.65), None]

    scores[judge_names(5e-4)[3]] = None  # it failed, so the whole candidate is out
    second = cell_progress(JUDGED, scores)
    assert second.stage == "alpha"
    assert [name for name in second.requested if name not in scores] == judge_names(1e-3, 1e-2)
    assert [(one.axis, one.value) for one in second.candidates[3:]] == [("alpha", 5e-3), ("alpha", 1e-2)]

    scores |= dict.fromkeys(judge_names(1e-3, 1e-2), 0.2)
    last = cell_progress(JUDGED, scores)
    # The seeds are run anew, on the whole training set.
    assert list(last.final) == [at(1e-3, 5e-3, seed) for seed in (1, 2, 3)]
    assert all(run.folds is None and run.fold is None for run in last.final.values())
    assert len(last.requested) == JUDGED.size == 4 * 4 + 3


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (RunSettings(task="hyperpartisan"), "hyperpartisan-prefix-propagation-07942467a39c"),
        (RunSettings(task="arxiv", method="lora", lora_rank=4, seed=3), "arxiv-lora-a9ed2a6655f4"),
    ],
)
def test_names_stay_what_they_were(settings: RunSettings, name: str) -> None:
    """Another name for the same settings would have every finished run of someone's sweep computed again."""
    assert run_name(settings) == name


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"seed": 2}, False),
        ({"folds": 5, "fold": 0}, False),
        ({"keep": "last"}, False),
        ({"device_batch_size": 1, "precision": "bf16"}, True),  # how it is computed
        ({"epochs": 20, "num_virtual_tokens": 8}, True),  # the paper's values, which are the defaults
    ],
)
def test_a_name_depends_on_what_decides_the_outcome(changes: dict[str, object], is_same: bool) -> None:
    assert (run_name(override(BASE, changes)) == run_name(BASE)) == is_same

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

RATES = (1e-2, 1e-3, 5e-4)


def at(learning_rate: float, alpha: float = 5e-3, seed: int = 1) -> str:
    return run_name(override(BASE, {"learning_rate": learning_rate, "alpha": alpha, "seed": seed}))


def judge_names(learning_rate: float, alpha: float = 5e-3) -> list[str]:
    candidate = override(BASE, {"learning_rate": learning_rate, "alpha": alpha})
    return [run_name(override(candidate, judge)) for judge in JUDGES]


def test_the_papers_order() -> None:
    scores: dict[str, float | None] = {}
    for stage, asked, found in (
        ("learning_rate", [at(rate) for rate in RATES], (0.7, 0.9, 0.8)),
        ("alpha", [at(1e-3, 1e-2)], (0.95,)),  # the first alpha at the chosen learning rate has been run already
        ("seeds", [at(1e-3, 1e-2, seed) for seed in (2, 3)], (0.9, 0.9)),
    ):
        progress = cell_progress(CELL, scores)
        assert progress.stage == stage and [name for name in progress.requested if name not in scores] == asked
        scores |= dict(zip(asked, found, strict=True))
    assert list(progress.final) == [at(1e-3, 1e-2, seed) for seed in (1, 2, 3)] and len(scores) == CELL.size == 6


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
    progress = cell_progress(
        CELL, {at(rate): one for rate, one in zip(RATES, found, strict=True) if one != "missing"}
    )
    assert progress.stage == stage and progress.stuck == (set(found) == {None}) and not progress.final
    assert chosen is None or list(progress.requested.values())[-1].learning_rate == chosen


@pytest.mark.parametrize("searched", [{}, {"learning_rate": (1e-2,)}])
def test_without_values_to_choose_from_the_seeds_are_run(searched: dict[str, tuple[float]]) -> None:
    cell = replace(JUDGED, searched=searched, seeds=(4, 5))
    progress = cell_progress(cell, {})
    assert [run.seed for run in progress.final.values()] == [4, 5]
    assert progress.stage == "seeds" and len(progress.requested) == cell.size == 2


def test_candidates_are_judged_by_the_mean_of_their_judges() -> None:
    # The best single run is not the one of the best mean, and a failed judge puts a candidate out.
    judged = {1e-2: (1.0, 0.1, 0.1, 0.1), 1e-3: (0.6, 0.7, 0.6, 0.7), 5e-4: (0.9, 0.9, 0.9, None)}
    assert list(cell_progress(JUDGED, {}).requested) == [name for rate in RATES for name in judge_names(rate)]
    scores = {name: one for rate in RATES for name, one in zip(judge_names(rate), judged[rate], strict=True)}
    second = cell_progress(JUDGED, scores)
    assert second.stage == "alpha"
    assert [name for name in second.requested if name not in scores] == judge_names(1e-3, 1e-2)
    assert [(one.axis, one.value, one.score) for one in second.candidates] == [
        ("learning_rate", 1e-2, pytest.approx(0.325)), ("learning_rate", 1e-3, pytest.approx(0.65)),
        ("learning_rate", 5e-4, None), ("alpha", 5e-3, pytest.approx(0.65)), ("alpha", 1e-2, None),
    ]  # fmt: skip
    last = cell_progress(JUDGED, scores | dict.fromkeys(judge_names(1e-3, 1e-2), 0.2))
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

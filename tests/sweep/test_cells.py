"""Which runs a cell asks for: the searched axes, one after the other, then the seeds; and what runs are called."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from prefixprop.sweep import Axis, Cell, cell_progress, read_plan, run_name
from prefixprop.train import RunSettings

BASE = RunSettings(task="hyperpartisan", kernel="exp", learning_rate=1e-2, alpha=5e-3)
CELL = Cell("kernel", BASE, (Axis("learning_rate", (1e-2, 1e-3, 5e-4)), Axis("alpha", (5e-3, 1e-2))), seeds=(1, 2, 3))


def at(learning_rate: float, alpha: float = 5e-3, seed: int = 1) -> str:
    return run_name(replace(BASE, learning_rate=learning_rate, alpha=alpha, seed=seed))


SWEEPS = Path(__file__).parents[2] / "recipes" / "sweeps"
JUDGES = tuple({"seed": seed, "folds": 2, "fold": fold} for seed in (1, 2) for fold in (0, 1))
JUDGED = replace(CELL, judges=JUDGES)


def judge_names(learning_rate: float, alpha: float = 5e-3) -> list[str]:
    candidate = replace(BASE, learning_rate=learning_rate, alpha=alpha)
    return [run_name(replace(candidate, **judge)) for judge in JUDGES]


def test_the_papers_order() -> None:
    scores: dict[str, float | None] = {}
    first = cell_progress(CELL, scores)
    assert [run_name(run) for run in first.requested] == [at(1e-2), at(1e-3), at(5e-4)]
    assert first.stage == "learning_rate" and not first.final

    scores |= {at(1e-2): 0.7, at(1e-3): 0.9, at(5e-4): 0.8}
    second = cell_progress(CELL, scores)
    # The first alpha at the chosen rate has been run already.
    assert {run_name(run) for run in second.requested} - set(scores) == {at(1e-3, 1e-2)}
    assert second.stage == "alpha"

    scores[at(1e-3, 1e-2)] = 0.95
    last = cell_progress(CELL, scores)
    assert [run_name(run) for run in last.final] == [at(1e-3, 1e-2, seed) for seed in (1, 2, 3)]
    assert last.stage == "seeds" and len(last.requested) == CELL.size == 6


def test_nothing_is_chosen_before_all_are_known() -> None:
    assert cell_progress(CELL, {at(1e-2): 0.7, at(5e-4): 0.8}).stage == "learning_rate"


def test_failed_runs_are_not_chosen() -> None:
    progress = cell_progress(CELL, {at(1e-2): None, at(1e-3): 0.1, at(5e-4): 0.05})
    assert progress.stage == "alpha" and progress.requested[-1].learning_rate == 1e-3
    stuck = cell_progress(CELL, {at(1e-2): None, at(1e-3): None, at(5e-4): None})
    assert stuck.stuck and stuck.stage == "learning_rate" and not stuck.final


def test_among_equals_the_first_is_chosen() -> None:
    progress = cell_progress(CELL, {at(1e-2): 0.7, at(1e-3): 0.9, at(5e-4): 0.9})
    assert progress.requested[-1].learning_rate == 1e-3


def test_a_cell_without_a_search_has_its_seeds() -> None:
    cell = Cell("plain", BASE, (), seeds=(4, 5))
    progress = cell_progress(cell, {})
    assert [run.seed for run in progress.final] == [4, 5] and cell.size == 2


def test_an_axis_of_one_value_is_no_stage() -> None:
    cell = replace(JUDGED, searched=(Axis("learning_rate", (1e-2,)),))
    progress = cell_progress(cell, {})
    assert progress.stage == "seeds" and len(progress.requested) == cell.size == 3


def test_candidates_are_judged_by_the_mean_of_their_judges() -> None:
    scores: dict[str, float | None] = {}
    first = cell_progress(JUDGED, scores)
    assert [run_name(run) for run in first.requested] == [
        name for rate in (1e-2, 1e-3, 5e-4) for name in judge_names(rate)
    ]
    # The best single run is not the one of the best mean.
    scores |= dict(zip(judge_names(1e-2), (1.0, 0.1, 0.1, 0.1), strict=True))
    scores |= dict(zip(judge_names(1e-3), (0.6, 0.7, 0.6, 0.7), strict=True))
    scores |= dict(zip(judge_names(5e-4)[:3], (0.9, 0.9, 0.9), strict=True))
    waiting = cell_progress(JUDGED, scores)
    assert waiting.stage == "learning_rate", "nothing is chosen before all are known"
    assert [candidate.score for candidate in waiting.candidates] == [pytest.approx(0.325), pytest.approx(0.65), None]

    scores[judge_names(5e-4)[3]] = None  # failed, so the whole candidate is out
    second = cell_progress(JUDGED, scores)
    assert second.stage == "alpha"
    assert [run_name(run) for run in second.requested if run_name(run) not in scores] == judge_names(1e-3, 1e-2)
    assert [(candidate.axis, candidate.value) for candidate in second.candidates[3:]] == [
        ("alpha", 5e-3),
        ("alpha", 1e-2),
    ]

    scores |= dict.fromkeys(judge_names(1e-3, 1e-2), 0.2)
    last = cell_progress(JUDGED, scores)
    # The seeds are run anew, on all of train.
    assert [run_name(run) for run in last.final] == [at(1e-3, 5e-3, seed) for seed in (1, 2, 3)]
    assert all(run.folds is None and run.fold is None for run in last.final)
    assert len(last.requested) == JUDGED.size == 4 * 4 + 3


def test_means_of_the_same_scores_are_equal() -> None:
    scores = dict(zip(judge_names(1e-2), (0.1, 0.2, 0.3, 0.7), strict=True))
    scores |= dict(zip(judge_names(1e-3), (0.7, 0.3, 0.2, 0.1), strict=True))
    scores |= dict.fromkeys(judge_names(5e-4), 0.1)
    assert cell_progress(JUDGED, scores).requested[-1].learning_rate == 1e-2


def test_seeds_that_judged_are_not_run_twice() -> None:
    cell = replace(CELL, judges=({"seed": 1}, {"seed": 2}))
    assert cell.size == 3 * 2 + 2 + 1
    scores: dict[str, float | None] = {}
    while missing := [run for run in cell_progress(cell, scores).requested if run_name(run) not in scores]:
        scores |= {run_name(run): 0.5 for run in missing}
    assert len(scores) == cell.size


def test_without_a_candidate_left_nothing_is_chosen() -> None:
    scores: dict[str, float | None] = {name: 0.5 for rate in (1e-2, 1e-3, 5e-4) for name in judge_names(rate)}
    scores |= {judge_names(rate)[place]: None for place, rate in enumerate((1e-2, 1e-3, 5e-4))}
    progress = cell_progress(JUDGED, scores)
    assert progress.stuck and progress.stage == "learning_rate" and not progress.final


@pytest.mark.parametrize(
    ("plan", "first", "digest"),
    [
        ("hyperpartisan-seeds", "hyperpartisan-prefix-tuning-5ee226e5f20d", "e18e5db337ddb789"),
        ("table2", "hyperpartisan-prefix-tuning-5ee226e5f20d", "7a9eb5004a309087"),
    ],
)
def test_names_stay_what_they_were(plan: str, first: str, digest: str) -> None:
    """Another name for the same settings would have every finished run of someone's sweep computed again."""
    cells = read_plan(SWEEPS / f"{plan}.yaml").cells
    names = [run_name(run) for cell in cells for run in cell_progress(cell, {}).requested]
    assert names[0] == first
    assert hashlib.sha256("\n".join(names).encode()).hexdigest()[:16] == digest


def test_names_hang_on_what_decides_the_outcome() -> None:
    assert run_name(BASE) != run_name(replace(BASE, seed=2)) != run_name(replace(BASE, seed=3))
    fold = replace(BASE, folds=5, fold=0)
    assert len({run_name(run) for run in (BASE, fold, replace(fold, fold=1), replace(BASE, keep="last"))}) == 4
    assert run_name(BASE) == run_name(replace(BASE, device_batch_size=1, precision="bf16"))
    # Left to the paper or said in so many words, it is the same run.
    assert run_name(BASE) == run_name(replace(BASE, epochs=20, num_virtual_tokens=8))
    assert run_name(BASE).startswith("hyperpartisan-prefix-propagation-")

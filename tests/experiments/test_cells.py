"""Which runs a cell asks for: first the searched axes, one after the other, then the seeds."""

from __future__ import annotations

from dataclasses import replace

from prefixprop.experiments import Axis, Cell, cell_progress, run_name
from prefixprop.training import RunSettings

BASE = RunSettings(task="hyperpartisan", kernel="exp", learning_rate=1e-2, alpha=5e-3)
CELL = Cell("kernel", BASE, (Axis("learning_rate", (1e-2, 1e-3, 5e-4)), Axis("alpha", (5e-3, 1e-2))), seeds=(1, 2, 3))


def at(learning_rate: float, alpha: float = 5e-3, seed: int = 1) -> str:
    return run_name(replace(BASE, learning_rate=learning_rate, alpha=alpha, seed=seed))


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


def test_names_hang_on_what_decides_the_outcome() -> None:
    assert run_name(BASE) != run_name(replace(BASE, seed=2)) != run_name(replace(BASE, seed=3))
    assert run_name(BASE) == run_name(replace(BASE, device_batch_size=1, precision="bf16"))
    # Left to the paper or said in so many words, it is the same run.
    assert run_name(BASE) == run_name(replace(BASE, epochs=20, num_virtual_tokens=8))
    assert run_name(BASE).startswith("hyperpartisan-prefix-propagation-")

"""`cross_validation` of a sweep's file: which runs judge, and all that can be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixprop.sweep import SweepPlan, read_plan
from prefixprop.train import SettingsError

SEARCH = "task: hyperpartisan\nseed: [3, 4]\nlr: [1e-2, 1e-3]\nsearch: lr\n"


def plan_of(folder: Path, text: str) -> SweepPlan:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return read_plan(path)


def test_every_fold_with_every_seed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SEARCH + "cross_validation: {folds: 2, seeds: [1, 2]}\n")
    (cell,) = plan.cells
    assert cell.judges == tuple({"seed": seed, "folds": 2, "fold": fold} for seed in (1, 2) for fold in (0, 1))
    assert plan.size == 2 * 4 + 2 and cell.settings.folds is None


def test_seeds_default_to_the_first_of_the_cell(tmp_path: Path) -> None:
    variants = "variants:\n  a:\n  b: {seed: [7, 8, 9]}\n"
    plan = plan_of(tmp_path, SEARCH + "cross_validation: {folds: 3}\n" + variants)
    assert [[judge["seed"] for judge in cell.judges] for cell in plan.cells] == [[3, 3, 3], [7, 7, 7]]
    assert plan.size == (2 * 3 + 2) + (2 * 3 + 3)
    one = plan_of(tmp_path, SEARCH + "cross_validation:\n  folds: 3\n  seeds: 5\n")
    assert [judge["seed"] for judge in one.cells[0].judges] == [5, 5, 5]


def test_without_it_the_first_seed_judges_on_dev(tmp_path: Path) -> None:
    (cell,) = plan_of(tmp_path, SEARCH).cells
    assert cell.judges == ({},) and cell.settings.seed == 3 and cell.size == 3


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("cross_validation: 5\n", ["5: cross_validation: say how many folds there are, such as {folds: 5}."]),
        ("cross_validation:\n", ["5: cross_validation: say how many folds there are, such as {folds: 5}."]),
        ("cross_validation: {seeds: [1]}\n", ["5: cross_validation: say how many folds there are"]),
        (
            "cross_validation:\n  folds: 1\n",
            ["6: cross_validation: folds: must be at least 2 and at most 1,000"],
        ),
        ("cross_validation:\n  folds: five\n", ["6: cross_validation: folds: must be a whole number, got 'five'."]),
        ("cross_validation:\n  folds:\n", ["6: cross_validation: folds: needs a whole number."]),
        (
            "cross_validation:\n  fold: 5\n  seed: 1\n  other: 3\n",
            [
                "6: cross_validation: there is no 'fold' (did you mean 'folds'?).",
                "7: cross_validation: there is no 'seed' (did you mean 'seeds'?).",
                "8: cross_validation: there is no 'other'; it has folds and seeds.",
            ],
        ),
        (
            "cross_validation:\n  folds: 5\n  folds: 4\n  seeds:\n    - 1\n    - -1\n    - 1\n",
            [
                "7: cross_validation: 'folds' is set twice; keep one.",
                "10: cross_validation: seeds: must be at least 0",
                "11: cross_validation: seeds: 1 is listed twice; keep one.",
            ],
        ),
        ("cross_validation:\n  folds: 5\n  seeds: []\n", ["7: cross_validation: seeds: the list is empty"]),
        ("folds: 5\ncross_validation: {folds: 5}\n", ["6: cross_validation: sets folds of its runs itself; leave"]),
        ("crossvalidation: {folds: 5}\n", ["5: there is no setting 'crossvalidation' (did you mean 'cross_validati"]),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, lines: str, expected: list[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        plan_of(tmp_path, SEARCH + lines)
    found = raised.value.problems
    assert len(found) == len(expected), found
    for problem, words in zip(found, expected, strict=True):
        assert problem.startswith(f"{tmp_path / 'plan.yaml'}:{words}"), problem


def test_without_a_search_there_is_nothing_to_judge(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"plan.yaml:2: cross_validation: without search there is nothing"):
        plan_of(tmp_path, "task: hyperpartisan\ncross_validation: {folds: 5}\n")

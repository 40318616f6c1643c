"""Plans of sweeps: grids, variants, searches, cross-validation, and all that can be wrong with them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from prefixprop.sweep import SweepPlan, read_plan
from prefixprop.train import SettingsError

RECIPES = Path(__file__).parents[2] / "recipes" / "sweeps"
SEARCH = "task: hyperpartisan\nseed: [3, 4]\nlr: [1e-2, 1e-3]\nsearch: lr\n"


def plan_of(folder: Path, text: str) -> SweepPlan:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return read_plan(path)


def test_every_list_is_an_axis(tmp_path: Path) -> None:
    text = "task: [hyperpartisan, newsgroups]\nmethod: [prefix-tuning, lora]\nlr: [1e-2, 1e-3]\nseed: [1, 2, 3]\n"
    plan = plan_of(tmp_path, text)
    assert plan.size == 24 and plan.name == "plan"
    assert plan.cells[0].name == "hyperpartisan prefix-tuning learning_rate=0.01"
    found = [(cell.settings.task, cell.settings.method, cell.settings.learning_rate) for cell in plan.cells]
    axes = ("hyperpartisan", "newsgroups"), ("prefix-tuning", "lora"), (1e-2, 1e-3)
    assert sorted(found) == sorted(itertools.product(*axes))


def test_variants_win_and_searches_are_theirs(tmp_path: Path) -> None:
    text = "task: hyperpartisan\nalpha: [5e-3, 1e-2]\nlearning_rate: 1e-3\nsearch: [learning_rate, alpha]\n"
    variants = "variants:\n  plain:\n  kernel: {kernel: exp, learning_rate: [1e-2, 1e-3]}\n"
    plain, kernel = plan_of(tmp_path, text + variants).cells
    # Without a kernel there is no alpha to choose.
    assert list(plain.searched) == ["learning_rate"] and plain.size == 1
    assert kernel.searched == {"learning_rate": (1e-2, 1e-3), "alpha": (5e-3, 1e-2)}
    assert kernel.size == 3 and kernel.name == "hyperpartisan kernel"


def test_documents_have_no_say_in_what_is_compared(tmp_path: Path) -> None:
    (cell,) = plan_of(tmp_path, f"train_files: {__file__}\n").cells
    assert cell.settings.method == "prefix-propagation+lora"


@pytest.mark.parametrize(
    ("text", "setting", "values"),
    [
        # A setting that is itself a list is no axis, but a list of lists is.
        ("method: lora\nlora_targets: [query, value]\n", "lora_targets", [("query", "value")]),
        ("method: lora\nlora_targets: [[query], [query, value]]\n", "lora_targets", [("query",), ("query", "value")]),
        # Settings without an effect make no cells, and count where a searched value gives them one.
        ("kernel: [null, exp]\nalpha: [5e-3, 1e-2]\n", "alpha", [0.005, 0.005, 0.01]),
        ("kernel: [exp, rbf]\nalpha: [0.05, 0.5]\nsearch: [kernel, alpha]\n", "alpha", [0.05]),
        ("kernel: [exp, rbf]\nalpha: 0.3\nsearch: kernel\n", "alpha", [0.3]),
    ],
)
def test_what_makes_a_cell(tmp_path: Path, text: str, setting: str, values: list[object]) -> None:
    cells = plan_of(tmp_path, "task: hyperpartisan\n" + text).cells
    assert [getattr(cell.settings, setting) for cell in cells] == values


@pytest.mark.parametrize(
    ("text", "judging_seeds", "size"),
    [
        ("", [[None]], 3),
        ("cross_validation: {folds: 2, seeds: [1, 2]}\n", [[1, 1, 2, 2]], 2 * 4 + 2),
        ("cross_validation:\n  folds: 3\n  seeds: 5\n", [[5, 5, 5]], 2 * 3 + 2),
        (
            "cross_validation: {folds: 3}\nvariants:\n  a:\n  b: {seed: [7, 8, 9]}\n",
            [[3, 3, 3], [7, 7, 7]],
            (2 * 3 + 2) + (2 * 3 + 3),
        ),
    ],
)
def test_which_runs_judge(tmp_path: Path, text: str, judging_seeds: list[list[int | None]], size: int) -> None:
    plan = plan_of(tmp_path, SEARCH + text)
    assert [[judge.get("seed") for judge in cell.judges] for cell in plan.cells] == judging_seeds
    assert plan.size == size and plan.cells[0].settings.seed == 3 and plan.cells[0].settings.folds is None
    folds = {judge.get("fold") for judge in plan.cells[0].judges}
    assert folds == (set(range(len(folds))) if text else {None})


ALL_WRONG = """task: [hyperpartisan, hyperpartizan]
learnin_rate: [1e-3]
epochs:
  - 3
  - many
seed: []
device_batch_size: [1, 2]
search: [seed, alpha, epoch]
variants:
  a: {method: lora, lora_rank: [4, 4]}
  a: {layout: sideways}
  b: 3
"""
TASK = "task: hyperpartisan\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            ALL_WRONG,
            [
                ":1: task: 'hyperpartizan' is unknown (did you mean 'hyperpartisan'?); choose one of ",
                ":2: there is no setting 'learnin_rate' (did you mean 'learning_rate'?).",
                ":5: epochs: must be a valid integer, got 'many'.",
                ":6: seed: the list is empty, so there is nothing to run; give a value.",
                ":7: device_batch_size: changes how runs are computed, not their results; give one value.",
                ":10: lora_rank: 4 is listed twice; keep one.",
                ":11: the variant 'a' is listed twice; give it another name.",
                ":11: layout: 'sideways' is unknown; choose one of paper, reference.",
                ":12: b: expected settings, got 3.",
                ":8: search: seed cannot be chosen on the dev set.",
                ":8: search: alpha has no values to choose from; give it a list.",
                ":8: search: there is no setting 'epoch' (did you mean 'epochs'?).",
            ],
        ),
        (TASK + "variants:\n  a:\n  b: {folds: 5}\n", [":4: --fold: "]),
        ("method: lora\n", [":1: Give one source of data"]),
        ("# nothing\n", [": the file is empty, so there is nothing to run"]),
        (TASK + "variants: {}\n", [":2: variants: expected a name and settings"]),
        (TASK + "variant: {}\n", [":2: there is no setting 'variant' (did you mean 'variants'?)"]),
        ("task: [\n", [":2: broken YAML"]),
        (
            TASK + "variants:\n  one: {precision: fp32}\n  two: {precision: bf16}\n",
            [": 'hyperpartisan one' and 'hyperpartisan two' would be the same runs"],
        ),
        (SEARCH + "cross_validation: 5\n", [":5: cross_validation: give the number of folds, such as {folds: 5}."]),
        (SEARCH + "cross_validation: {folds: }\n", [":5: cross_validation: give the number of folds"]),
        (SEARCH + "cross_validation:\n  folds: 1\n", [":6: cross_validation: folds: must be greater"]),
        (
            SEARCH + "cross_validation:\n  folds: 5\n  folds: 4\n  seed: 1\n  seeds:\n    - -1\n    - 1\n    - 1\n",
            [
                ":7: cross_validation: expected folds and seeds, each once, got 'folds'.",
                ":8: cross_validation: expected folds and seeds, each once, got 'seed'.",
                ":10: cross_validation: seeds: must be greater than or equal to 0",
                ":12: cross_validation: seeds: 1 is listed twice; keep one.",
            ],
        ),
        (SEARCH + "cross_validation: {folds: 5, seeds: []}\n", [":5: cross_validation: seeds: the list is empty"]),
        (SEARCH + "fold: 1\ncross_validation: {folds: 5}\n", [":6: cross_validation: leave folds and fold out"]),
        (TASK + "cross_validation: {folds: 5}\n", [":2: cross_validation: without search there is nothing"]),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, expected: list[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        plan_of(tmp_path, text)
    found = raised.value.problems
    assert len(found) == len(expected), found
    for problem, words in zip(found, expected, strict=True):
        assert problem.startswith(f"{tmp_path / 'plan.yaml'}{words}"), problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "seed: [1, 2]\nepochs: {many}\nwarmup: {shares}\nlora_rank: {many}\n",
            "multiply to 2,000,000 runs, and a sweep may have 10,000; shorten lists or divide the file. Their "
            "lengths: seed (2), epochs (100), warmup (100), lora_rank (100).",
        ),
        ("lr: [1e-2, 1e-3]\nsearch: lr\ncross_validation: {{folds: 1000000}}\n", "multiply to 2,000,001 runs"),
        ("epochs: {many}\nvariants:\n  a: {{warmup: {shares}}}\n  b: {{batch_size: {many}}}\n", "to 20,000 runs"),
        ("epochs: {many}\nwarmup: {shares}\nweight_decay: {shares}\nsearch: [epochs, warmup, weight_decay]\n", None),
    ],
)
def test_too_many_runs_are_refused_before_they_are_made(tmp_path: Path, text: str, words: str | None) -> None:
    many, shares = list(range(1, 101)), [number / 100 for number in range(100)]
    text = TASK + text.format(many=many, shares=shares)
    if words is None:  # what is searched adds up
        assert plan_of(tmp_path, text).size == 3 * 99 + 1
        return
    with pytest.raises(SettingsError) as raised:
        plan_of(tmp_path, text)
    (problem,) = raised.value.problems
    assert words in problem


def test_folders_of_tasks(tmp_path: Path) -> None:
    plan_of(tmp_path, "task: [hyperpartisan, wikihop]\n")
    path = tmp_path / "plan.yaml"
    cells = read_plan(path, {"wikihop": str(tmp_path)}).cells
    assert [cell.settings.data_dir for cell in cells] == [None, str(tmp_path)]
    with pytest.raises(SettingsError, match="there is no task 'wiki'; choose one of hyperpartisan"):
        read_plan(path, {"wiki": str(tmp_path)})
    with pytest.raises(SettingsError, match=r"--data-dir: .*none is not a folder"):
        read_plan(path, {"wikihop": str(tmp_path / "none")})


@pytest.mark.parametrize(("name", "size", "cells"), [("hyperpartisan-seeds", 47, 5), ("table2", 68, 4 * 4)])
def test_recipes_have_the_papers_grids(name: str, size: int, cells: int) -> None:
    plan = read_plan(RECIPES / f"{name}.yaml")
    assert (plan.size, len(plan.cells)) == (size, cells)
    for cell in plan.cells:
        is_fine_tuning = cell.settings.method == "fine-tuning"
        rates = {3e-5, 5e-5} if is_fine_tuning else {1e-2, 5e-2, 1e-3, 5e-3, 5e-4}
        alphas = {"alpha": {1e-2, 4e-2, 1e-3, 3e-3, 5e-3, 7e-3}} if cell.settings.kernel else {}
        assert {name: set(values) for name, values in cell.searched.items()} == {"learning_rate": rates, **alphas}
        assert cell.settings.batch_size == 32 and cell.settings.early_stopping > 0
        assert cell.seeds == ((1, 2, 3, 4, 5) if name == "hyperpartisan-seeds" else (1,))


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_can_be_read(path: Path) -> None:
    assert 0 < read_plan(path).size < 1000


def test_a_run_of_a_sweep_has_one_label_column(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("text,topic,tone\n")
    files = f"train_files: {tmp_path / 'mine.csv'}\nmethod: readers\n"
    cells = plan_of(tmp_path, f"{files}label_column: [[topic], [tone]]\n").cells
    assert [cell.settings.label_column for cell in cells] == [("topic",), ("tone",)]
    with pytest.raises(SettingsError, match=r"a run of a sweep has one column; .* \[\[one\], \[other\]\]"):
        plan_of(tmp_path, f"{files}label_column: [topic, tone]\n")

"""Plans of sweeps: grids, variants, searches, and all that can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixprop.sweep import Axis, SweepPlan, read_plan
from prefixprop.train import SettingsError

RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "sweeps").glob("*.yaml"))
PREFIX_RATES, ALPHAS = {1e-2, 5e-2, 1e-3, 5e-3, 5e-4}, {1e-2, 4e-2, 1e-3, 3e-3, 5e-3, 7e-3}


def write(folder: Path, text: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        read_plan(write(folder, text))
    return [problem.removeprefix(f"{folder}/plan.yaml:") for problem in raised.value.problems]


def plan_of(folder: Path, text: str) -> SweepPlan:
    return read_plan(write(folder, text))


def test_every_list_is_an_axis(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        "task: [hyperpartisan, newsgroups]\nmethod: [prefix-tuning, lora]\nlr: [1e-2, 1e-3]\nseed: [1, 2, 3]\n",
    )
    assert len(plan.cells) == 8 and plan.size == 24 and plan.name == "plan"
    assert plan.cells[0].name == "hyperpartisan prefix-tuning learning_rate=0.01"
    assert {(cell.settings.task, cell.settings.method, cell.settings.learning_rate) for cell in plan.cells} == {
        (task, method, rate)
        for task in ("hyperpartisan", "newsgroups")
        for method in ("prefix-tuning", "lora")
        for rate in (1e-2, 1e-3)
    }


def test_a_setting_that_is_a_list_is_no_axis(tmp_path: Path) -> None:
    shared = "task: hyperpartisan\nmethod: lora\nlora_targets: "
    (one,) = plan_of(tmp_path, shared + "[query, value]\n").cells
    assert one.settings.lora_targets == ("query", "value")
    two = plan_of(tmp_path, shared + "[[query], [query, value]]\n").cells
    assert [cell.settings.lora_targets for cell in two] == [("query",), ("query", "value")]


def test_variants_win_and_searches_are_theirs(tmp_path: Path) -> None:
    text = """
task: hyperpartisan
alpha: [5e-3, 1e-2]
learning_rate: 1e-3
search: [learning_rate, alpha]
variants:
  plain:
  kernel: {kernel: exp, learning_rate: [1e-2, 1e-3]}
"""
    plain, kernel = plan_of(tmp_path, text).cells
    # Without a kernel there is no alpha to choose.
    assert [axis.name for axis in plain.searched] == ["learning_rate"] and plain.size == 1
    assert kernel.searched == (Axis("learning_rate", (1e-2, 1e-3)), Axis("alpha", (5e-3, 1e-2)))
    assert kernel.size == 3 and kernel.name == "hyperpartisan kernel"


def test_alpha_makes_no_cells_without_a_kernel(tmp_path: Path) -> None:
    text = "task: hyperpartisan\nkernel: [null, exp]\nalpha: [5e-3, 1e-2]\n"
    assert [(cell.settings.kernel, cell.settings.alpha) for cell in plan_of(tmp_path, text).cells] == [
        (None, 0.005),
        ("exp", 0.005),
        ("exp", 0.01),
    ]


def test_all_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    text = """task: [hyperpartisan, hyperpartizan]
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
    assert problems(tmp_path, text) == [
        "1: task: 'hyperpartizan' is unknown (did you mean 'hyperpartisan'?); choose one of hyperpartisan, "
        "newsgroups, arxiv, elife, wikihop. One of your own: prefixprop --import MODULE, which adds it.",
        "2: there is no setting 'learnin_rate' (did you mean 'learning_rate'?).",
        "5: epochs: must be a whole number, got 'many'.",
        "6: seed: the list is empty, so there is nothing to run; give a value.",
        "7: device_batch_size: changes how runs are computed, not their results; give one value.",
        "10: lora_rank: 4 is listed twice; keep one.",
        "11: the variant 'a' is listed twice; give it another name.",
        "11: layout: 'sideways' is unknown; choose one of paper, reference.",
        "12: b: expected settings, got 3.",
        "8: search: seed cannot be chosen on dev.",
        "8: search: alpha has no values to choose from; give it a list.",
        "8: search: there is no setting 'epoch' (did you mean 'epochs'?).",
    ]


def test_settings_that_do_not_go_together(tmp_path: Path) -> None:
    text = "task: hyperpartisan\nvariants:\n  a: {batch_size: 8}\n  b:\n    batch_size: 12\n"
    (problem,) = problems(tmp_path, text)
    assert problem.startswith("4: --batch-size: 12 documents per step cannot be made of whole batches")
    assert "Give one source of data" in problems(tmp_path, "method: lora\n")[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# nothing\n", "the file is empty, so there is nothing to run"),
        ("task: hyperpartisan\nvariants: {}\n", "2: variants: expected a name and settings"),
        ("task: hyperpartisan\nvariants: [a, b]\n", "2: variants: expected a name and settings"),
        ("task: [\n", "broken YAML"),
        ("task: hyperpartisan\nvariant: {}\n", "(did you mean 'variants'?)"),
    ],
)
def test_plans_of_nothing(tmp_path: Path, text: str, words: str) -> None:
    assert words in problems(tmp_path, text)[0]


def test_folders_of_tasks(tmp_path: Path) -> None:
    path = write(tmp_path, "task: [hyperpartisan, wikihop]\n")
    cells = read_plan(path, {"wikihop": str(tmp_path)}).cells
    assert [cell.settings.data_dir for cell in cells] == [None, str(tmp_path)]
    with pytest.raises(SettingsError, match="'wiki' is no task; choose one of hyperpartisan"):
        read_plan(path, {"wiki": str(tmp_path)})
    with pytest.raises(SettingsError, match=r"--data-dir: .*none is not a folder"):
        read_plan(path, {"wikihop": str(tmp_path / "none")})


def test_recipes_have_the_papers_grids() -> None:
    assert {path.stem: read_plan(path).size for path in RECIPES} == {"hyperpartisan-seeds": 47, "table2": 68}
    for path in RECIPES:
        for cell in read_plan(path).cells:
            searched = {axis.name: set(axis.values) for axis in cell.searched}
            rates = {3e-5, 5e-5} if cell.settings.method == "fine-tuning" else PREFIX_RATES
            alphas = {"alpha": ALPHAS} if cell.settings.kernel else {}
            assert searched == {"learning_rate": rates, **alphas}
            assert cell.settings.batch_size == 32 and cell.settings.early_stopping > 0


def test_recipes_compare_what_the_paper_does() -> None:
    plans = {path.stem: read_plan(path) for path in RECIPES}
    assert len(plans["table2"].cells) == 4 * 4
    assert {cell.seeds for cell in plans["hyperpartisan-seeds"].cells} == {(1, 2, 3, 4, 5)}
    kernels = [cell.settings.kernel for cell in plans["hyperpartisan-seeds"].cells]
    assert kernels.count("exp") == 1 and kernels.count(None) == 4


def test_alpha_counts_where_kernels_are_searched(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("task: hyperpartisan\nkernel: [exp, rbf]\nalpha: [0.05, 0.5]\nsearch: [kernel, alpha]\n")
    (cell,) = read_plan(path).cells
    assert [axis.name for axis in cell.searched] == ["kernel", "alpha"] and cell.settings.alpha == 0.05
    path.write_text("task: hyperpartisan\nkernel: [exp, rbf]\nalpha: 0.3\nsearch: kernel\n")
    assert read_plan(path).cells[0].settings.alpha == 0.3


def test_cells_that_would_be_the_same_runs(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("task: hyperpartisan\nvariants:\n  one: {precision: fp32}\n  two: {precision: bf16}\n")
    with pytest.raises(SettingsError, match="'hyperpartisan one' and 'hyperpartisan two' would be the same runs"):
        read_plan(path)

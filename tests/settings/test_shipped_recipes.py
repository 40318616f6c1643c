"""Every shipped recipe can be read, and makes a run; values that the paper states are the paper's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefixprop.choices import DEFAULT_MODEL
from prefixprop.data import TASKS
from prefixprop.settings.methods import METHODS
from prefixprop.settings.resolve import resolve
from prefixprop.train import RunSettings, override, plan, read_settings

from tiny_training import save_tiny_model, write_documents, write_questions

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets in the shape of every task, and a tiny model."""
    folder = tmp_path_factory.mktemp("data")
    save_tiny_model(folder / "model")
    write_questions(folder / "wikihop")
    write_questions(folder / "hybridqa")
    for path in (folder / "hybridqa").iterdir():
        questions = json.loads(path.read_text())
        rows = [
            one | {"supports": [f"w{number} w7" for number in range(len(one["candidates"]))]} for one in questions
        ]
        path.write_text(json.dumps(rows))
    (folder / "cuad").mkdir()
    contracts = [
        {"id": f"c{n}", "text": f"w5 w{n}", "labels": ["Insurance", "Non-Compete"][: n % 3]} for n in range(24)
    ]
    (folder / "cuad" / "contracts.jsonl").write_text("\n".join(map(json.dumps, contracts)))
    for task in ("arxiv", "elife"):
        (folder / task).mkdir()
        for number, split in enumerate(("train", "dev", "test")):
            write_documents(folder / task / f"{split}.jsonl", 8, number)
    (folder / "newsgroups").mkdir()
    for split in ("train", "test"):
        posts = [
            {"id": f"{number}", "text": f"From: w{9}\n\nw5 w6 w{number + 7}", "label": number % 2, "label_name": name}
            for number, name in enumerate(["sci.space", "rec.autos"] * 4)
        ]
        (folder / "newsgroups" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, posts)))
    return folder


def test_there_are_recipes_for_every_task_and_method() -> None:
    settings = [override(RunSettings(), read_settings(recipe)) for recipe in RECIPES]
    assert {run.task for run in settings} == set(TASKS)
    assert {run.method for run in settings} == set(METHODS)
    assert any(run.kernel for run in settings)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipe_makes_a_run(recipe: Path, data: Path) -> None:
    settings = override(RunSettings(), read_settings(recipe))
    assert settings.data_dir is None and settings.model == DEFAULT_MODEL
    if settings.task != "hyperpartisan":
        settings = replace(settings, data_dir=str(data / str(settings.task)))
    small = replace(
        settings,
        model=str(data / "model"),
        max_length=100,
        max_train_documents=6,
        max_dev_documents=4,
        max_test_documents=4,
    )
    run = plan(small)
    if settings.is_mix:  # its models are made in training
        assert run.parameters.trainable == 0 and run.settings.learning_rate is None
        return
    assert run.steps == settings.epochs and run.parameters.trainable > 0
    assert (run.parameters.prefix > 0) == settings.is_prefix_method


@pytest.mark.parametrize("recipe", [path for path in RECIPES if path.stem != "demo"], ids=lambda recipe: recipe.stem)
def test_recipe_has_the_papers_values(recipe: Path) -> None:
    settings = override(RunSettings(), read_settings(recipe))
    if settings.is_mix:  # which the paper does not have
        assert resolve(settings) == resolve(RunSettings(task=settings.task, method=settings.method))
        return
    assert settings.early_stopping > 0
    bare = RunSettings(task=settings.task, method=settings.method, kernel=settings.kernel, early_stopping=5)
    assert resolve(settings) == resolve(bare)
    assert settings.batch_size == 32 and settings.epochs == (20 if settings.task == "hyperpartisan" else 10)

"""Every shipped recipe can be read, and makes a run; values that the paper states are the paper's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixprop.choices import DEFAULT_MODEL
from prefixprop.data import TASKS
from prefixprop.settings.methods import METHODS
from prefixprop.settings.resolve import refuse_unused, resolve
from prefixprop.train import RunSettings, override, plan, read_settings

from tiny_training import save_tiny_model, write_documents, write_questions

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def test_there_are_recipes_for_every_task_and_method() -> None:
    settings = [override(RunSettings(), read_settings(recipe)) for recipe in RECIPES]
    assert {run.task for run in settings} == set(TASKS)
    assert {run.method for run in settings} == set(METHODS)
    assert any(run.kernel for run in settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, documents and questions."""
    folder = tmp_path_factory.mktemp("data")
    save_tiny_model(folder / "model")
    write_questions(folder / "questions")
    write_documents(folder / "documents.jsonl", 8, seed=1)
    return folder


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipe_makes_a_run(recipe: Path, folder: Path) -> None:
    settings = override(RunSettings(), read_settings(recipe))
    assert settings.data_dir is None and settings.model == DEFAULT_MODEL
    refuse_unused(settings, read_settings(recipe))
    questions = {"task": "wikihop", "data_dir": str(folder / "questions"), "max_train_documents": 6}
    documents = {"task": None, "train_files": (str(folder / "documents.jsonl"),), "id_column": "id"}
    source: dict[str, Any] = questions if settings.answers_questions else documents
    run = plan(replace(settings, model=str(folder / "model"), max_length=100, **source))
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

"""YAML as entries with their lines, whichever of PyYAML's two loaders reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixprop.settings import yaml_entries
from prefixprop.settings.check import SettingsError
from prefixprop.settings.yaml_entries import YamlEntry, YamlValue, read_entries

TEXT = """\
task: arxiv  # a comment

learning_rate: [1e-2, 5e-3]
variants:
  "32 rows": {num_virtual_tokens: 32}
  none: ~
"""
RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))


@pytest.fixture(params=["libyaml", "plain"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(yaml_entries, "FAST_LOADER", None)
    elif yaml_entries.FAST_LOADER is None:
        pytest.skip("PyYAML was built without libyaml")


@pytest.mark.usefixtures("loader")
def test_lines_and_values(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(TEXT, encoding="utf-8")
    task, rate, variants = read_entries(path)
    assert task == YamlEntry(1, "task", YamlValue(1, "arxiv"))
    assert (rate.line, rate.value.plain) == (3, ["1e-2", "5e-3"])  # YAML 1.1 wants a point in a number
    assert variants.value.plain == {"32 rows": {"num_virtual_tokens": 32}, "none": None}
    assert variants.value.entries is not None
    assert [(entry.line, entry.key) for entry in variants.value.entries] == [(5, "32 rows"), (6, "none")]


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs: 1\nseed: [1, 2\n", r"recipe.yaml:3: broken YAML: expected ',' or '\]', but got '<stream end>'"),
        ("epochs: 1\n\tseed: 2\n", r"recipe.yaml:2: broken YAML: found character '\\t' that cannot start any token"),
        ("- epochs\n", "recipe.yaml:1: expected lines such as 'epochs: 10'"),
    ],
)
def test_what_is_wrong_is_told_alike(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=said):
        read_entries(tmp_path / "recipe.yaml")


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("level", ["[{}]", "{{{}}}"], ids=["lists", "mappings"])
def test_aliases_of_aliases_are_refused(level: str, tmp_path: Path) -> None:
    lines = ["a0: &a0 [" + ", ".join("lol" for _ in range(9)) + "]"]
    for number in range(1, 10):
        parts = (f"*a{number - 1}" if "[" in level else f"{key}: *a{number - 1}" for key in range(9))
        lines.append(f"a{number}: &a{number} " + level.format(", ".join(parts)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("\n".join(lines), encoding="utf-8")
    # Nine values on the first line, and nine times as many on each that follows: 9 ** 6 on the sixth.
    with pytest.raises(SettingsError, match=r"recipe.yaml:6: .* more than 100,000 values"):
        read_entries(recipe)


@pytest.mark.usefixtures("loader")
def test_an_alias_is_what_it_names(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: &seeds [1, 2]\nvariants: {a: {seed: *seeds}, b: {seed: *seeds}}\n", encoding="utf-8")
    _, variants = read_entries(recipe)
    assert variants.value.plain == {"a": {"seed": [1, 2]}, "b": {"seed": [1, 2]}}


@pytest.mark.usefixtures("loader")
def test_a_list_that_contains_itself_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("task: arxiv\nseed: &seeds [1, *seeds]\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"recipe.yaml:2: broken YAML: found unconstructable recursive node"):
        read_entries(recipe)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_both_loaders_read_the_same(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_entries(recipe)
    monkeypatch.setattr(yaml_entries, "FAST_LOADER", None)
    assert read_entries(recipe) == found and found

"""Settings as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixprop.train import RunSettings, SettingsError, override, read_settings, settings_to_yaml

SETTINGS = RunSettings(
    train_files=("a.csv", "b.csv"),
    learning_rate=3e-5,
    kernel="exp",
    reparameterize=True,
    text_column="no: 'yes' # ü",
    max_length=512,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_written_settings_are_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, settings_to_yaml(SETTINGS))
    assert override(RunSettings(), read_settings(path)) == SETTINGS


def test_values_may_be_written_as_people_do(tmp_path: Path) -> None:
    values = read_settings(write(tmp_path, "lr: 5e-3\nwarmup: 0\ntrain-files: a.csv\n"))
    assert override(RunSettings(), values) == RunSettings(learning_rate=5e-3, warmup=0.0, train_files=("a.csv",))
    assert read_settings(write(tmp_path, "# nothing\n")) == {}


@pytest.mark.parametrize(
    ("text", "columns"),
    [("tone", ("tone",)), ("[tone]", ("tone",)), ("[topic, tone]", ("topic", "tone")), ("[]", ())],
)
def test_one_or_several_label_columns(tmp_path: Path, text: str, columns: tuple[str, ...]) -> None:
    settings = override(RunSettings(), read_settings(write(tmp_path, f"label_column: {text}\n")))
    assert settings == RunSettings(label_column=columns)
    path = write(tmp_path, settings_to_yaml(settings))
    assert override(RunSettings(), read_settings(path)) == settings


def test_all_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "task: hyperpartisan\nlearnin_rate: 1\n\nepochs: many\nseed: 1\nseed: 2\nlora_rank: 0\n")
    with pytest.raises(SettingsError) as raised:
        read_settings(path)
    assert raised.value.problems == (
        f"{path}:2: there is no setting 'learnin_rate' (did you mean 'learning_rate'?).",
        f"{path}:4: epochs: must be a valid integer, got 'many'.",
        f"{path}:6: 'seed' is set twice; keep one of the lines.",
        f"{path}:7: lora_rank: must be greater than or equal to 1, got 0.",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("task: [unclosed\n", "recipe.yaml:2: broken YAML: "),
        ("epochs: 1\n\tseed: 2\n", "recipe.yaml:2: broken YAML: found"),
        ("- a\n- b\n", "recipe.yaml:1: expected lines such as 'epochs: 10'"),
        (f"lr: {10**400}\n", "recipe.yaml:1: lr: must be a valid number, got 1000"),
        *((f"label_column: {text}\n", "recipe.yaml:1: label_column: must be ") for text in ("3", "[topic, 3]", "~")),
        ("zzz: 1\n", "there is no setting 'zzz'; the settings are task, data_dir"),
        ("task: !!python/object:os.system x\n", "recipe.yaml:1: broken YAML: could not determine a constructor"),
        ("seed: 1\nepochs: &a 3\nlora_rank: *a\n", "recipe.yaml:3: aliases (*) are not read here"),
        ("seed: &seeds [1, *seeds]\n", "recipe.yaml:1: aliases (*) are not read here"),
    ],
)
def test_files_that_are_no_settings(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=r"recipe\.yaml:") as raised:
        read_settings(write(tmp_path, text))
    assert problem in str(raised.value)


def test_text_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"seed: 1\ntask: \xff\n")
    with pytest.raises(ValueError, match=r"latin\.yaml:2: the text is not UTF-8"):
        read_settings(tmp_path / "latin.yaml")

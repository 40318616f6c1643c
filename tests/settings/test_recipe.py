"""Settings as YAML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prefixprop.settings.recipe import differences
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


def test_numbers_may_be_written_as_people_do(tmp_path: Path) -> None:
    values = read_settings(write(tmp_path, "lr: 5e-3\nwarmup: 0\ntrain-files: a.csv\n"))
    assert values == {"learning_rate": 5e-3, "warmup": 0.0, "train_files": ("a.csv",)}
    assert read_settings(write(tmp_path, "# nothing\n")) == {}


def test_all_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "task: hyperpartisan\nlearnin_rate: 1\n\nepochs: many\nseed: 1\nseed: 2\nlora_rank: 0\n")
    with pytest.raises(SettingsError) as raised:
        read_settings(path)
    assert raised.value.problems == (
        f"{path}:2: there is no setting 'learnin_rate' (did you mean 'learning_rate'?).",
        f"{path}:4: epochs: must be a whole number, got 'many'.",
        f"{path}:6: 'seed' is set twice; keep one of the lines.",
        f"{path}:7: lora_rank: must be at least 1 and at most 65,536, got 0.",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task: [unclosed\n", "recipe.yaml:2: broken YAML"),
        ("- a\n- b\n", "recipe.yaml:1: expected lines such as 'epochs: 10'"),
        (f"lr: {10**400}\n", "recipe.yaml:1: lr: must be more than 0 and at most 100, got 1000"),
        ("zzz: 1\n", "there is no setting 'zzz'; the settings are task, data_dir"),
        ("task: !!python/object:os.system x\n", "recipe.yaml:1: broken YAML: could not determine a constructor"),
    ],
)
def test_files_that_are_no_settings(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=r"recipe\.yaml:") as raised:
        read_settings(write(tmp_path, text))
    assert words in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: the file cannot be read .*check its path"):
        read_settings(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"task: \xff\n")
    with pytest.raises(SettingsError, match="not UTF-8"):
        read_settings(tmp_path / "latin.yaml")


def test_override_knows_the_names() -> None:
    with pytest.raises(SettingsError, match=r"'epoch' \(did you mean 'epochs'\?\)"):
        override(SETTINGS, {"epoch": 3})


def test_differences_leave_out_what_may_change() -> None:
    other = replace(SETTINGS, device_batch_size=1, seed=3, report_to=("wandb",), keep_checkpoints=True)
    assert differences(SETTINGS, other) == ["--seed (was 1, now 3)"]

"""`prefixprop train`: what it prints, and that nothing ends in a traceback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from command_line import call
from prefixprop.choices import SHOWN_METRICS
from prefixprop.evaluate import Temperature
from prefixprop.settings.run_settings import SETTINGS, RunSettings, flag_of
from prefixprop.train import override, read_settings, settings_to_yaml

from tiny_training import tiny_settings


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(settings_to_yaml(tiny_settings(tmp_path, epochs=1)))
    return path


def refused(*arguments: object) -> str:
    """What is told about wrong arguments."""
    return call("train", *arguments, status=1)[1]


def test_what_is_told_before_meanwhile_and_at_the_end(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefixprop.cli.messages._SECONDS_BETWEEN_LINES", -1.0)
    with (tmp_path / "dev.jsonl").open("a") as file:
        file.write('{"id": "empty", "text": "  ", "label": "law"}\n')
    folder = tmp_path / "[b] \x1b[31mred"
    options = ("--config", recipe, "--run-dir", folder)
    shown, told = call("train", *options, "--batch-size", 3, "--device-batch-size", 16)
    for words in (
        "24 documents of up to 128 tokens, 1 × 8 steps of 3 documents, learning rate 0.01, ",
        " trained parameters (",
        "Note: the run has 8 steps, too few to learn much",
        "Note: 1 of 11 dev documents is empty",
        "training: 2 of 8, 0 min so far",
        "epoch   1  step      8",
    ):
        assert words in told
    metrics = json.loads((folder / "metrics.json").read_text())
    loss, path = f"{metrics['test_calibrated']['nll']:.4f}", rf"Run directory: {tmp_path}/[b] \x1b[31mred"
    for words in ("8 test documents", "accuracy", "TF-IDF", "ECE", "temperature", loss, path, "Next: prefixprop"):
        assert words in shown
    problem, evaluated = refused(*options), call("evaluate", folder)[0]
    assert "has a finished run" in problem and "--overwrite" in problem and "[b]" in evaluated
    assert "\x1b" not in shown + told + problem + evaluated


def test_several_labels_of_a_text_column(tmp_path: Path, recipe: Path) -> None:
    rows = [(number, "; ".join(["law", "art"][: number % 3]), f"w{number} w{number % 3}") for number in range(24)]
    path = tmp_path / "letters.csv"
    path.write_text("id,kinds,body\n" + "".join(f"{name},{labels},{body}\n" for name, labels, body in rows))
    columns = ("--text-column", "body", "--label-column", "kinds", "--label-separator", ";")
    source = ("--train-files", path, *columns, "--run-dir", tmp_path / "run")
    shown, told = call("train", "--method", "tfidf", *source)
    assert "average precision" in told and "Expected average precision: " in shown and "macro-F1" in shown
    data = ("--input", path, *columns)
    assert json.loads(call("evaluate", tmp_path / "run", *data, "--json")[0])["before"]["documents"] == 24
    told = call("evaluate", tmp_path / "run", "--split", "dev", status=1)[1]
    assert "has no dev documents; its answers to held-out documents are stored" in told
    predicted = call("predict", tmp_path / "run", path, "--text-column", "body")[0]
    assert set(json.loads(predicted.splitlines()[0])["labels"]) <= {"law", "art"}


@pytest.mark.parametrize("better", [True, False])
def test_a_better_baseline_and_a_temperature_that_says_nothing_are_told(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch, better: bool
) -> None:
    metrics_of_it = dict.fromkeys(SHOWN_METRICS, 0.987 if better else 0.0)
    baseline = {"model": "TF-IDF of a test", "dev": metrics_of_it, "test": metrics_of_it}
    monkeypatch.setattr("prefixprop.train.kinds.measure_baseline", lambda task, weight: baseline)
    fitted = Temperature(5.1 if better else 4.9)
    monkeypatch.setattr("prefixprop.train.single_run.fit_temperature", lambda logits, labels, spread: fitted)
    shown, _ = call("train", "--config", recipe, "--run-dir", tmp_path / "run")
    assert ("0.9870" if better else "0.0000") in shown
    reached = json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]["accuracy"]
    worse = f"TF-IDF is better: accuracy {reached:.3f} against 0.987 on 8 test documents."
    assert (worse in shown) == ("Warning: the temperature is 5.1" in shown) == better
    assert (f"Better than TF-IDF: accuracy {reached:.3f} against 0.000" in shown) != better


def test_the_last_checkpoint_of_a_fold_without_a_baseline(tmp_path: Path, recipe: Path) -> None:
    options = ("--folds", 3, "--fold", 0, "--keep", "last", "--no-baseline")
    shown = call("train", "--config", recipe, "-o", tmp_path / "run", *options)[0].partition("Run directory")[0]
    assert "Last epoch: 1 (best on the dev set: 1)" in shown and "dev documents" in shown
    assert "test" not in shown and "TF-IDF" not in shown


def test_a_dry_run_is_a_recipe_in_which_flags_win(tmp_path: Path, recipe: Path) -> None:
    flags = ("--lr", "3e-4", "--seed", 7, "--reparameterize")
    shown, _ = call("train", "--config", recipe, *flags, "--dry-run")
    printed = yaml.safe_load(shown)
    assert printed["learning_rate"] == 3e-4 and printed["seed"] == 7 and printed["reparameterize"] is True
    assert printed["num_virtual_tokens"] == 2 and printed["label_column"] == ["label"]  # of the recipe
    for words in ("Steps: 3 (3 per epoch)", "Documents: training 24, dev 10, test 8", "Note: the run has 3 steps"):
        assert f"# {words}" in shown
    (tmp_path / "again.yaml").write_text(shown)
    assert override(RunSettings(), read_settings(tmp_path / "again.yaml")).max_length == 128
    assert not (tmp_path / "runs").exists()


def test_every_setting_is_a_flag() -> None:
    everyday, everything = (call("train", flag, columns=80)[0] for flag in ("--help", "--help-all"))
    missing = [name for name in SETTINGS if flag_of(name) not in everything]
    assert not missing and "--lr" in everyday and "--config" in everyday and "--lora-rank" not in everyday
    assert "…" not in everything and max(map(len, everything.splitlines())) <= 80


def test_resume_takes_the_settings_of_the_run(tmp_path: Path, recipe: Path) -> None:
    call("train", "--config", recipe, "--run-dir", tmp_path / "run")
    assert "Run directory:" in call("train", "--run-dir", tmp_path / "run", "--resume")[0]
    told = refused("--run-dir", tmp_path / "run", "--resume", "--epochs", 4)
    assert "other settings: --epochs (was 1, now 4)" in told


CONFIG = ("--config", "recipe.yaml")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--task", "hyperpartizan", "--epochs", 0, "--kernel", "foo"),
            ("did you mean 'hyperpartisan'?", "--epochs: must be greater than", "--kernel: 'foo' is unknown"),
        ),
        ((*CONFIG, "--method", "lora", "--label-column", "topic"), ["there is no column 'topic'"]),
        (
            (*CONFIG, "--text-column", "premise", "--text-column", "hypothesis"),
            ["--text-column: give one; a document is one text, so join the texts of a pair into one column first."],
        ),
        (("--config", "none.yaml"), ["none.yaml: No such file or directory"]),
        (("--config", "wrong.yaml"), ["wrong.yaml:2: there is no setting 'epoch' (did you mean 'epochs'?)"]),
        ((*CONFIG, "--dev-files", "broken.jsonl"), ["broken.jsonl:2: broken JSON"]),
    ],
)
def test_what_is_wrong_is_a_line_each(
    tmp_path: Path, recipe: Path, arguments: tuple[object, ...], told: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.yaml").write_text("task: hyperpartisan\nepoch: 3\n")
    Path("broken.jsonl").write_text('{"id": "a", "text": "w5", "label": "law"}\n{"id": "b", "text')
    problems = refused(*arguments, "--run-dir", "run")
    assert all(words in problems for words in told) and problems.count("Error:") == len(told)
    assert not Path("run").exists()


def test_settings_that_would_change_nothing(tmp_path: Path, recipe: Path) -> None:
    """A flag is refused, as whoever gives it expects something of it; a recipe may be one for several methods."""
    assert "num_virtual_tokens: 2" in recipe.read_text()
    other = ("--config", recipe, "--method", "head-only", "--run-dir", tmp_path / "run")
    told = refused(*other, "--num-virtual-tokens", 4)
    assert "--num-virtual-tokens: belongs to --method prefix-propagation" in told
    told = refused(*other, "--lora-rank", 4, "--alpha", 0.1)
    assert "--lora-rank: belongs to" in told and "--alpha: belongs to" in told
    call("train", *other)
    assert read_settings(tmp_path / "run" / "config.yaml")["num_virtual_tokens"] == 8, "as the paper has it"
    call("train", *other, "--resume")


def test_a_composed_method(tmp_path: Path, recipe: Path) -> None:
    flags = ("--method", "prefix-propagation+lora", "--gate", "--lora-rank", 2)
    call("train", "--config", recipe, "--run-dir", tmp_path / "run", *flags)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "2 virtual tokens, a gate per layer, LoRA of rank 2: trains virtual tokens" in card
    assert f"(prefix {3 * 2 * 32}, gates 3, lora {4 * 3 * 2 * 2 * 32:,}, head" in card
    assert "prefix-propagation+lora" in call("report", tmp_path / "run")[0]

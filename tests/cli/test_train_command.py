"""`prefixprop train`: what it prints, and that nothing ends in a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from prefixprop import load_run
from prefixprop.cli.app import app
from prefixprop.cli.train import SHOWN
from prefixprop.evaluate import read_predictions
from prefixprop.settings.run_settings import SETTINGS, RunSettings, flag_of
from prefixprop.train import override, read_settings, settings_to_yaml

from tiny_training import LABELS, tiny_settings


def run(*arguments: object, typed: str = "") -> Result:
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    return runner.invoke(app, ["train", *map(str, arguments)], input=typed)


def expect_error(result: Result, *words: str) -> None:
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit) and "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(settings_to_yaml(tiny_settings(tmp_path, epochs=1)))
    return path


def test_what_is_told_before_meanwhile_and_at_the_end(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefixprop.cli.progress._SECONDS_BETWEEN_LINES", -1.0)
    with (tmp_path / "dev.jsonl").open("a") as file:
        file.write('{"id": "empty", "text": "  ", "label": "law"}\n')
    folder = tmp_path / "[b] \x1b[31mred"
    result = run("--config", recipe, "--run-dir", folder, "--batch-size", 3, "--device-batch-size", 16)
    assert result.exit_code == 0, result.output
    for words in (
        "24 documents of up to 128 tokens, 1 × 8 steps of 3 documents, learning rate 0.01, seed 1",
        "Note: the run has 8 steps, too few to learn much",
        "Note: 1 of 11 dev documents is empty",
        "training: 2 of 8, 0 minutes so far",
        "epoch   1  step      8",
    ):
        assert words in result.stderr
    metrics = json.loads((folder / "metrics.json").read_text())
    loss, path = f"{metrics['test']['nll']:.4f}", rf"Run directory: {tmp_path}/[b] \x1b[31mred"
    for words in ("dev, calibrated", "test, calibrated", "micro_f1", "ece", "Temperature", loss, path):
        assert words in result.stdout
    refused = run("--config", recipe, "--run-dir", folder)
    expect_error(refused, "has a finished run", "--overwrite")
    evaluated = CliRunner().invoke(app, ["evaluate", str(folder)])
    assert evaluated.exit_code == 0 and "[b]" in evaluated.stdout
    assert "\x1b" not in result.output + refused.output + evaluated.output


@pytest.mark.parametrize("better", [True, False])
def test_a_better_baseline_and_a_temperature_that_says_nothing_are_told(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch, better: bool
) -> None:
    metrics_of_it = dict.fromkeys(SHOWN, 0.987 if better else 0.0)
    baseline = {"model": "TF-IDF of a test", "dev": metrics_of_it, "test": metrics_of_it}
    monkeypatch.setattr("prefixprop.train.documents.measure_baseline", lambda task: baseline)
    monkeypatch.setattr("prefixprop.evaluate.calibration.is_bound", lambda temperature: better)
    result = run("--config", recipe, "--run-dir", tmp_path / "run")
    assert result.exit_code == 0, result.output
    for words in ("dev, TF-IDF", "test, TF-IDF", "TF-IDF of a test", "0.9870" if better else "0.0000"):
        assert words in result.stdout
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    sentence = f"The TF-IDF baseline is better here: 0.987 against {metrics['dev']['micro_f1']:.3f} on the dev set."
    assert (sentence in result.stdout) == better
    assert ("Do not trust calibrated probabilities" in result.stdout) == better


def test_the_last_checkpoint_of_a_fold_without_a_baseline(tmp_path: Path, recipe: Path) -> None:
    options = ("--folds", 3, "--fold", 0, "--keep", "last", "--no-baseline")
    result = run("--config", recipe, "-o", tmp_path / "run", *options)
    assert result.exit_code == 0, result.output
    shown = result.stdout.partition("Run directory")[0]
    assert "Last epoch: 1 (best on the dev set: 1)" in shown and "dev, calibrated" in shown
    assert "test" not in shown and "TF-IDF" not in shown


def test_a_dry_run_is_a_recipe_in_which_flags_win(tmp_path: Path, recipe: Path) -> None:
    result = run("--config", recipe, "--lr", "3e-4", "--seed", 7, "--reparameterize", "--dry-run")
    assert result.exit_code == 0, result.output
    printed = yaml.safe_load(result.stdout)
    assert printed["learning_rate"] == 3e-4 and printed["seed"] == 7 and printed["reparameterize"] is True
    assert printed["num_virtual_tokens"] == 2  # of the recipe
    for words in ("Steps: 3 (3 per epoch)", "Documents: training 24, dev 10, test 8", "Note: the run has 3 steps"):
        assert f"# {words}" in result.stdout
    assert "prefix               192" in result.stdout
    (tmp_path / "again.yaml").write_text(result.stdout)
    assert override(RunSettings(), read_settings(tmp_path / "again.yaml")).max_length == 128
    assert not (tmp_path / "runs").exists()


def test_every_setting_is_a_flag() -> None:
    printed = run("--help").stdout
    missing = [name for name in SETTINGS if flag_of(name) not in printed]
    assert not missing and "--lr" in printed and "--config" in printed


def test_resume_takes_the_settings_of_the_run(tmp_path: Path, recipe: Path) -> None:
    run_dir = tmp_path / "run"
    assert run("--config", recipe, "--run-dir", run_dir).exit_code == 0
    again = run("--run-dir", run_dir, "--resume")
    assert again.exit_code == 0 and "Run directory:" in again.stdout
    refused = run("--run-dir", run_dir, "--resume", "--epochs", 4)
    assert refused.exit_code == 1 and "other settings: --epochs (was 1, now 4)" in refused.stderr


def test_all_wrong_settings_are_told_at_once() -> None:
    result = run("--task", "hyperpartizan", "--epochs", 0, "--kernel", "foo")
    expect_error(
        result,
        "did you mean 'hyperpartisan'?",
        "--epochs: must be greater than or equal to 1",
        "--kernel: 'foo' is unknown",
    )
    assert result.stderr.count("Error:") == 3


def test_a_broken_recipe(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("task: hyperpartisan\nepoch: 3\n")
    expect_error(run("--config", path), f"{path}:2: there is no setting 'epoch' (did you mean 'epochs'?)")
    expect_error(run("--config", tmp_path / "none.yaml"), "none.yaml: the file cannot be read")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"id": "a", "text": "w5", "label": "law"}\n{"id": "b", "text": ', ":2: broken JSON"),
        (b'{"id": "a", "text": "w5", "label": "law"}\n' * 2, ":2: the id 'a' is also that of"),
    ],
)
def test_bad_documents_are_one_line_with_their_place(
    tmp_path: Path, recipe: Path, content: bytes, words: str
) -> None:
    (tmp_path / "dev.jsonl").write_bytes(content)
    result = run("--config", recipe, "--run-dir", tmp_path / "run")
    expect_error(result, str(tmp_path / "dev.jsonl") + words)
    assert result.stderr.count("Error:") == 1 and not (tmp_path / "run").exists()


def test_settings_that_would_change_nothing(tmp_path: Path, recipe: Path) -> None:
    """A flag is refused, as whoever gives it expects something of it; a recipe may be one for several methods."""
    assert "num_virtual_tokens: 2" in recipe.read_text()
    other = ("--config", recipe, "--method", "head-only", "--run-dir", tmp_path / "run")
    expect_error(
        run(*other, "--num-virtual-tokens", 4), "--num-virtual-tokens: belongs to --method prefix-propagation"
    )
    expect_error(run(*other, "--lora-rank", 4, "--alpha", 0.1), "--lora-rank: belongs to", "--alpha: belongs to")
    assert run(*other).exit_code == 0
    assert read_settings(tmp_path / "run" / "config.yaml")["num_virtual_tokens"] == 8, "as the paper has it"
    assert run(*other, "--resume").exit_code == 0


def test_nan_and_trackers(tmp_path: Path, recipe: Path) -> None:
    wild = ("--method", "fine-tuning", "--lr", 100, "--weight-decay", 1e6, "--epochs", 3)
    expect_error(run("--config", recipe, "--run-dir", tmp_path / "r", *wild), "The loss is", "at step")
    expect_error(run("--config", recipe, "--report-to", "nobody"), "--report-to: 'nobody' is unknown")


def test_a_composed_method_from_training_to_prediction(tmp_path: Path, recipe: Path) -> None:
    flags = ("--method", "prefix-propagation+lora", "--gate", "--lora-rank", 2)
    result = run("--config", recipe, "--run-dir", tmp_path / "run", *flags)
    assert result.exit_code == 0, result.output
    parts = json.loads((tmp_path / "run" / "metrics.json").read_text())["parameters"]
    assert (parts["prefix"], parts["gates"], parts["lora"]) == (3 * 2 * 32, 3, 4 * 3 * 2 * 2 * 32)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "2 virtual tokens, a gate per layer, LoRA of rank 2: trains virtual tokens" in card
    assert "(prefix 192, gates 3, lora 1,536, head" in card

    documents = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    stored = read_predictions(tmp_path / "run" / "predictions" / "dev.jsonl")
    predicted = load_run(tmp_path / "run").predict([document["text"] for document in documents])
    assert [found.label for found in predicted] == [sorted(LABELS)[row] for row in stored.logits.argmax(axis=1)]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", str(tmp_path / "run")])
    assert "prefix-propagation+lora" in shown.stdout, shown.output

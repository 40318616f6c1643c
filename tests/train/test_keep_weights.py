"""Runs that keep no weights: what they leave, what their card says, and what cannot be done with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixprop import load_run
from prefixprop.cli.app import app
from prefixprop.train import RunDirectory, RunSettings, SettingsError, check_settings, train

from tiny_training import Notes, comparable, tiny_settings

KEPT = {
    "config.yaml", "labels.json", "environment.json", "lengths.json", "history.jsonl", "predictions",
    ".prefixprop-lock", "manifest.json", "metrics.json", "README.md",
}  # fmt: skip


def names(run_dir: Path) -> set[str]:
    return {path.name for path in run_dir.iterdir()}


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSettings, Path]:
    """A run that kept no weights, and its settings."""
    folder = tmp_path_factory.mktemp("lean")
    settings = tiny_settings(folder, method="prefix-propagation+lora", epochs=1, keep_weights=False)
    return settings, train(settings, folder / "run").run_dir


def test_the_results_are_those_of_a_run_with_weights(tmp_path: Path, lean: tuple[RunSettings, Path]) -> None:
    settings, run_dir = lean
    kept = train(replace(settings, keep_weights=True), tmp_path / "run").metrics
    assert comparable(kept) == comparable(RunDirectory(run_dir).read_metrics())
    assert names(tmp_path / "run") == KEPT | {"adapter", "tokenizer"} and names(run_dir) == KEPT


def test_its_card_has_no_code_and_it_cannot_predict(lean: tuple[RunSettings, Path]) -> None:
    settings, run_dir = lean
    card = (run_dir / "README.md").read_text(encoding="utf-8")
    assert "did not keep its weights" in card and "--keep-weights" in card
    assert "```" not in card and "prefixprop predict" not in card and "| accuracy |" in card
    with pytest.raises(ValueError, match=r"run: this run did not keep its weights; .* --keep-weights"):
        load_run(run_dir)
    for command in (["predict", run_dir, settings.dev_files[0]], ["evaluate", run_dir]):
        result = CliRunner().invoke(app, [str(part) for part in command])
        assert result.exit_code == 1 and "did not keep its weights" in result.stderr
        assert "Traceback" not in result.output


def test_a_finished_one_is_returned_as_it_is(lean: tuple[RunSettings, Path]) -> None:
    settings, run_dir = lean
    first = RunDirectory(run_dir).read_metrics()
    before = {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file()}
    told: list[str] = []
    assert train(settings, run_dir, resume=True, progress=Notes(told)).metrics == first and not told
    assert train(replace(settings, keep_weights=True), run_dir, resume=True, progress=Notes(told)).metrics == first
    assert len(told) == 1 and "finished run without its weights; --overwrite" in told[0]
    assert {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file()} == before


def test_resumed_with_other_wishes(tmp_path: Path) -> None:
    """Killed after the weights were written and before the metrics, then resumed without them."""
    settings, run_dir = tiny_settings(tmp_path, method="head-only", epochs=1), tmp_path / "run"
    train(settings, run_dir)
    (run_dir / "metrics.json").unlink()
    train(replace(settings, keep_weights=False), run_dir, resume=True)
    assert names(run_dir) == KEPT and not RunDirectory(run_dir).read_settings().keep_weights


def test_checkpoints_are_weights() -> None:
    settings = RunSettings(task="hyperpartisan", keep_checkpoints=True, keep_weights=False)
    with pytest.raises(SettingsError, match="--keep-checkpoints: checkpoints are weights, and --no-keep-weights"):
        check_settings(settings)

"""`prefixprop lengthen` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixprop.cli.app import app
from tiny_pretraining import write_original, write_text

TINY = ["--max-length", "64", "--attention-window", "16", "--batch-size", "4"]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A model, its text and an output folder that is not there yet."""
    original = write_original(tmp_path / "original")
    text = write_text(tmp_path / "text.jsonl")
    return ["lengthen", str(original), "--text", str(text), "--output", str(tmp_path / "long"), *TINY]


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_it_shows_the_held_out_loss_and_where_the_encoder_is(arguments: list[str], tmp_path: Path) -> None:
    code, shown = invoke(*arguments, "--steps", "2", "--lr", "1e-3")
    assert code == 0, shown
    assert "64 tokens at once" in shown and "bits per token before" in shown and "after" in shown
    assert "2 steps, 512 tokens" in shown and f"Encoder: {tmp_path / 'long'}" in shown
    assert (tmp_path / "long" / "model.safetensors").exists()
    code, shown = invoke(*arguments, "--steps", "2")
    assert code == 1 and "--resume" in shown and "--overwrite" in shown
    code, shown = invoke(*arguments, "--steps", "2", "--lr", "1e-3", "--resume")
    assert code == 0 and "2 steps" in shown
    code, shown = invoke(*arguments, "--steps", "1", "--overwrite")
    assert code == 0 and "1 steps" in shown


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        (None, ["--steps", "0"], "--steps: must be greater than or equal to 1, got 0"),
        (None, ["--text", "absent.jsonl"], "--text: absent.jsonl is not a file"),
        (None, ["--text-column", "body"], "there is no column 'body'"),
        ("./absent", [], "roberta-mini-512"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], model: str | None, changes: list[str], said: str) -> None:
    code, shown = invoke(arguments[0], model or arguments[1], *arguments[2:], *changes)
    assert code == 1 and said in shown and (model or "") in shown and "Traceback" not in shown

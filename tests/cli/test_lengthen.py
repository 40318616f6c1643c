"""`prefixprop lengthen` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import call
from tiny_pretraining import write_original, write_text

TINY = ["--max-length", "64", "--attention-window", "16", "--batch-size", "4"]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A model, its text and an output folder that is not there yet."""
    original = write_original(tmp_path / "original")
    text = write_text(tmp_path / "text.jsonl")
    return ["lengthen", str(original), "--text", str(text), "--output", str(tmp_path / "long"), *TINY]


def test_it_shows_the_held_out_loss_and_where_the_encoder_is(arguments: list[str], tmp_path: Path) -> None:
    shown = "".join(call(*arguments, "--steps", "2", "--lr", "1e-3"))
    assert "64 tokens at once" in shown and "bits per token before" in shown and "after" in shown
    assert "2 steps, 512 tokens" in shown and f"Encoder: {tmp_path / 'long'}" in shown
    assert (tmp_path / "long" / "model.safetensors").exists()
    refused = call(*arguments, "--steps", "2", status=1)[1]
    assert "--resume" in refused and "--overwrite" in refused
    assert "2 steps" in "".join(call(*arguments, "--steps", "2", "--lr", "1e-3", "--resume"))
    assert "1 steps" in "".join(call(*arguments, "--steps", "1", "--overwrite"))


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        (None, ["--text", "absent.jsonl"], "--text: absent.jsonl is not a file"),
        (None, ["--text-column", "body"], "there is no column 'body'"),
        ("./absent", [], "--model: there is no folder ./absent"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], model: str | None, changes: list[str], said: str) -> None:
    shown = call(arguments[0], model or arguments[1], *arguments[2:], *changes, status=1)[1]
    assert said in shown and (model or "") in shown

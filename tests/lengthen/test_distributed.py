"""Two processes on the CPU (gloo) end in the same as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launching import launch_two
from prefixprop.lengthen import lengthen_and_train
from tiny_pretraining import tiny_settings, write_original, write_text

from tiny_training import Notes


def test_two_processes_end_like_one(tmp_path: Path) -> None:
    settings = tiny_settings(write_original(tmp_path / "original"), write_text(tmp_path / "text.jsonl"), steps=3)
    options = {
        "max-length": settings.max_length,
        "attention-window": settings.attention_window,
        "steps": settings.steps,
        "batch-size": settings.batch_size,
        "device-batch-size": settings.device_batch_size,
        "learning-rate": settings.learning_rate,
        "checkpoint-seconds": 0,
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    given = settings.model, "--text", settings.text[0], "--output", str(tmp_path / "two")
    printed = launch_two(tmp_path, "lengthen", *given, *flags)
    assert printed.count("Encoder:") == 1, "only the main process speaks"
    one = lengthen_and_train(settings, tmp_path / "one", progress=Notes())
    two = json.loads((tmp_path / "two" / "lengthen.json").read_text())
    assert two["environment"]["processes"] == 2 and two["tokens_seen"] == one["tokens_seen"]
    for line, other in zip(one["history"], two["history"], strict=True):
        assert line["held_out_bits"] == pytest.approx(other["held_out_bits"], abs=1e-3)
    ends = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    # Sums are formed in another order, and AdamW's first steps divide by gradients that are nearly zero.
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=1e-3) for name in ends[0])

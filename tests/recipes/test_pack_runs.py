"""Small copies of runs: they predict nearly what the runs predict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import pack_runs
from prefixprop.predict import load_run
from prefixprop.train import train

from tiny_training import tiny_settings


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "prefix-propagation"},
        {"method": "prefix-reading"},
        {"method": "lora", "num_virtual_tokens": None},
        {"model": "longformer-mini-4096"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_a_copy_predicts_nearly_the_same(tmp_path: Path, changes: dict) -> None:
    settings = tiny_settings(tmp_path, epochs=1, max_length=16, baseline=False, **changes)
    run, copy = train(settings, tmp_path / "run").run_dir, tmp_path / "packed" / "run"
    pack_runs.pack(run, copy)
    assert (copy / "tokenizer").exists() == ("model" not in changes), "the package has its own"
    assert not (copy / "predictions").exists()
    assert json.loads((copy / "environment.json").read_bytes())["command"] is None
    first, second = (load_run(folder, "cpu").predict(["A text to read"])[0] for folder in (run, copy))
    assert first.probabilities == pytest.approx(second.probabilities, abs=0.02)
    weights = copy / "adapter" / "adapter_model.safetensors"
    assert {str(tensor.dtype) for tensor in load_file(weights).values()} == {"torch.bfloat16"}
    weights.write_bytes(weights.read_bytes()[:-2] + b"12")
    with pytest.raises(ValueError, match="this is not what the run left"):
        load_run(copy, "cpu")

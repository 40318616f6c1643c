"""What tells one trained model from another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prefixprop.runs.directory import RunDirectory

from tiny_runs import make_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("fingerprint"), family="roberta")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "elsewhere"))


@pytest.mark.parametrize("folder", ["adapter", "model", "head"])
def test_whatever_decides_predictions_changes_it(made: Path, run: Path, folder: str) -> None:
    if folder != "adapter":
        (run / "adapter").rename(run / folder)
    seen = {RunDirectory(run).fingerprint()}
    for part in (f"{folder}/adapter_model.safetensors", "tokenizer/tokenizer.json", "labels.json", "config.yaml"):
        path = run / part
        changed = (b"max_length: ", b"max_length: 1") if part == "config.yaml" else (b"a", b"b")
        path.write_bytes(path.read_bytes().replace(*changed))
        seen.add(RunDirectory(run).fingerprint())
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps(metrics | {"temperature": 1.25}))
    assert len(seen | {RunDirectory(run).fingerprint()}) == 6


def test_nothing_else_does(made: Path, run: Path) -> None:
    (run / "README.md").write_text("a card")
    (run / "adapter" / "README.md").write_text("a card")
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps(metrics | {"seconds": 3}))
    assert RunDirectory(run).fingerprint() == RunDirectory(made).fingerprint()

"""An adapter that version 0.1 wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from prefixprop.train import RunDirectory

FIXTURE = Path(__file__).parents[1] / "fixtures" / "version-0.1"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy in a working folder, because the run names its base model and files relative to it."""
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_an_adapter_loads(run: Path) -> None:
    labels = RunDirectory(run).read_labels()
    model = AutoModelForSequenceClassification.from_pretrained(run.parent / "model", num_labels=len(labels))
    adapted = PeftModel.from_pretrained(model, str(run / "adapter"))
    assert adapted.get_prefix().shape[1] == RunDirectory(run).read_settings().num_virtual_tokens

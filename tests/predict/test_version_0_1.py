"""A run directory, a file of predictions and an adapter that version 0.1 wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from prefixprop import load_run
from prefixprop.data import read_json_lines
from prefixprop.runs.find import find_runs
from prefixprop.train import RunDirectory

FIXTURE = Path(__file__).parents[1] / "fixtures" / "version-0.1"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy in a working folder, because the run names its base model and files relative to it."""
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_a_run_predicts_what_it_did(run: Path) -> None:
    (found,) = find_runs([run]).runs
    stored = found.predictions("test")
    texts = [record["text"] for record in read_json_lines(run.parent / "test.jsonl")]
    predicted = load_run(run).predict(texts)
    assert found.temperature is not None and found.settings.kernel == "exp"
    expected = stored.with_temperature(found.temperature).probabilities
    np.testing.assert_allclose([list(one.probabilities.values()) for one in predicted], expected, atol=1e-5)
    assert stored.evaluate() == pytest.approx(found.metrics["test"], abs=1e-9)


def test_an_adapter_loads(run: Path) -> None:
    labels = RunDirectory(run).read_labels()
    model = AutoModelForSequenceClassification.from_pretrained(run.parent / "model", num_labels=len(labels))
    adapted = PeftModel.from_pretrained(model, str(run / "adapter"))
    assert adapted.get_prefix().shape[1] == RunDirectory(run).read_settings().num_virtual_tokens

"""Code that comes with a model is never run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from prefixprop.settings.base_model import load_base_model
from prefixprop.train import RunSettings

from tiny_training import save_tiny_model


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model with code beside the weights, and a user (or a pipe) that says yes to everything."""
    folder = save_tiny_model(tmp_path / "model", "roberta")
    (folder / "code.py").write_text(f"open({str(tmp_path / 'code-ran')!r}, 'w').close()\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 10))
    return folder


@pytest.mark.parametrize(
    ("model_type", "auto_class", "task"),
    [
        ("own", "AutoConfig", None),
        # Encoders of pictures, for which transformers has no classes of these kinds.
        ("vitdet", "AutoModelForSequenceClassification", None),
        ("blip_vision_model", "AutoModel", "wikihop"),
    ],
)
def test_code_beside_a_model_is_never_run(
    model_type: str, auto_class: str, task: str | None, with_code: Path, tmp_path: Path
) -> None:
    change_json(with_code / "config.json", model_type=model_type, auto_map={auto_class: "code.Own"})
    labels = None if task else ("a", "b")
    with pytest.raises(ValueError, match="contains custom code"):
        load_base_model(RunSettings(model=str(with_code), task=task)).build(labels)
    assert not (tmp_path / "code-ran").exists()

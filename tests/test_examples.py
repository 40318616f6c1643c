"""The demo, on a few articles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "hyperpartisan.py"


def load_demo() -> Any:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_demo_ends_in_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    demo = load_demo()
    for name, value in {"TRAIN_ARTICLES": 12, "TEST_ARTICLES": 6, "MAX_LENGTH": 48, "EPOCHS": 1}.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.chdir(tmp_path)
    demo.main()
    printed = capsys.readouterr().out
    for row in ("majority class", "TF-IDF + logistic regression", "prefix-propagation"):
        assert row in printed
    assert "167,042" in printed  # trained parameters: the prefix and the head
    assert not list(tmp_path.iterdir()), "the demo leaves nothing behind"


def test_demo_predicts_in_the_order_of_the_documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rich.console import Console

    from prefixprop.models import load_default
    from prefixprop.tasks import load_hyperpartisan

    demo = load_demo()
    monkeypatch.setattr(demo, "MAX_LENGTH", 32)
    task = load_hyperpartisan()
    factory, tokenizer = load_default()
    trainer = demo.build_trainer(demo.build_model(factory), tokenizer, task.train[:8], Console(quiet=True), tmp_path)
    documents = task.dev[:20]
    together = demo.predict(trainer, tokenizer, documents)
    for index in (0, 7, 19):
        alone = demo.predict(trainer, tokenizer, [documents[index]])
        assert together[index] == pytest.approx(alone[0], abs=1e-5)

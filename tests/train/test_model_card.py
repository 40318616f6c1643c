"""The model card of a run: its Python really loads the model that was trained, with the names of its labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from prefixprop.evaluate import read_predictions
from prefixprop.train import RunSettings, train

from tiny_training import LABELS, Notes, write_documents

CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    ("method", "model", "changes"),
    [
        ("fine-tuning", "roberta-mini-512", {}),
        ("prefix-propagation", "longformer-mini-4096", {"kernel": "exp", "alpha_mode": "head", "pooling": "prefix"}),
    ],
)
def test_the_code_loads_the_model(
    tmp_path: Path, method: str, model: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {split: write_documents(tmp_path / f"{split}.jsonl", 4, 1) for split in ("train", "dev")}
    files = {f"{split}_files": (str(path),) for split, path in paths.items()}
    settings = RunSettings(model=model, method=method, max_length=40, epochs=1, **files, **changes)
    train(settings, tmp_path / "run", progress=Notes())
    stored = read_predictions(tmp_path / "run" / "predictions" / "dev.jsonl")
    monkeypatch.chdir(tmp_path / "run")
    names: dict[str, Any] = {}
    card = Path("README.md").read_text(encoding="utf-8")
    assert ("virtual tokens" in card) == settings.is_prefix_method
    codes = CODE.findall(card)
    assert len(codes) == (1 if method == "fine-tuning" else 2)
    for code in codes:
        exec(compile(code, "README.md", "exec"), names)
    texts = [json.loads(line)["text"] for line in paths["dev"].read_text().splitlines()]
    assert [answer.label for answer in names["run"].predict(texts)] == [
        sorted(LABELS)[row] for row in stored.logits.argmax(axis=1)
    ]
    if "model" not in names:
        return
    assert not names["model"].training and names["model"].config.id2label == dict(enumerate(sorted(LABELS)))
    tokenizer = AutoTokenizer.from_pretrained("tokenizer")
    for row, text in enumerate(texts):
        inputs = tokenizer(text, truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            assert names["model"](**inputs).logits[0].tolist() == pytest.approx(stored.logits[row].tolist(), abs=1e-3)
    monkeypatch.chdir("adapter")  # which may be published alone
    (code,) = CODE.findall(Path("README.md").read_text(encoding="utf-8"))
    exec(compile(code, "README.md", "exec"), alone := {})
    assert alone["model"].config.id2label == names["model"].config.id2label

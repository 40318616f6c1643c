"""The model card of a run: its Python really loads the model that was trained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from prefixprop.data import CandidateCollator, WikiHopDataset, load_wikihop
from prefixprop.evaluate import read_predictions
from prefixprop.train import RunSettings, train

from tiny_training import write_documents, write_questions

CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
SMALL: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 4,
    "device_batch_size": 4,
    "learning_rate": 1e-2,
    "num_virtual_tokens": 2,
}


def loaded_by_the_card(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model that the card's code ends in, run in the folder of the run as a reader would."""
    monkeypatch.chdir(run_dir)
    (code,) = CODE.findall((run_dir / "README.md").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert not names["model"].training, "it is ready to predict"
    return names["model"]


@pytest.mark.parametrize(
    ("method", "model", "changes"),
    [
        ("fine-tuning", "roberta-mini-512", {}),
        ("head-only", "roberta-mini-512", {}),
        ("prefix-tuning+lora", "roberta-mini-512", {}),
        ("prefix-propagation", "longformer-mini-4096", {"kernel": "exp", "alpha_mode": "head", "pooling": "prefix"}),
    ],
)
def test_the_code_loads_the_model(
    tmp_path: Path, method: str, model: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {split: write_documents(tmp_path / f"{split}.jsonl", 4, 1) for split in ("train", "dev")}
    files = {f"{split}_files": (str(path),) for split, path in paths.items()}
    settings = RunSettings(model=model, method=method, max_length=40, **SMALL, **files, **changes)
    train(settings, tmp_path / "run", tell=lambda note: None)
    stored = read_predictions(tmp_path / "run" / "predictions" / "dev.jsonl")
    loaded = loaded_by_the_card(tmp_path / "run", monkeypatch)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "tokenizer")
    for row, line in enumerate((tmp_path / "dev.jsonl").read_text().splitlines()):
        inputs = tokenizer(json.loads(line)["text"], truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            assert loaded(**inputs).logits[0].tolist() == pytest.approx(stored.logits[row].tolist(), abs=1e-3)


@pytest.mark.parametrize("method", ["prefix-tuning+lora", "head-only"])
def test_the_code_loads_a_candidate_scorer(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_questions(tmp_path / "wikihop")
    options = SMALL | {"max_train_documents": 4, "max_test_documents": 1, "chunk_reduction": "sum"}
    settings = RunSettings(
        task="wikihop", data_dir=str(folder), model="roberta-mini-512", method=method, max_length=160, **options
    )
    train(settings, tmp_path / "run", tell=lambda note: None)
    stored = read_predictions(tmp_path / "run" / "predictions" / "dev.jsonl")
    loaded = loaded_by_the_card(tmp_path / "run", monkeypatch)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "tokenizer")
    dataset = WikiHopDataset(load_wikihop(folder).dev, tokenizer, 160)
    assert len(dataset) == len(stored.ids) and max(len(dataset[row].chunks) for row in range(len(dataset))) > 1
    for row in range(len(dataset)):
        batch = CandidateCollator(tokenizer.pad_token_id)([dataset[row]])
        with torch.no_grad():
            logits = loaded(**batch).logits[0].tolist()
        assert logits == pytest.approx(stored.logits[row, : len(logits)].tolist(), abs=1e-3)

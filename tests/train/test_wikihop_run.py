"""WikiHop from questions to a run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModel, AutoTokenizer, TrainerCallback

from prefixprop.data import CandidateCollator, WikiHopDataset, add_special_tokens, load_task
from prefixprop.evaluate import read_predictions
from prefixprop.models import CandidateScorer, candidate_scorer
from prefixprop.train import RunSettings, train

from tiny_training import Notes, save_tiny_model, write_questions


def question_settings(folder: Path, family: str = "longformer", **changes: Any) -> RunSettings:
    values: dict[str, Any] = {
        "task": "wikihop",
        "data_dir": str(write_questions(folder / "wikihop")),
        "model": str(save_tiny_model(folder / family, family)),
        "num_virtual_tokens": 2,
        "max_length": 80,
        "epochs": 1,
        "batch_size": 4,
        "device_batch_size": 2,
        "learning_rate": 1e-2,
    }
    return RunSettings(**(values | changes))


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("longformer", "prefix-propagation"),
        ("longformer", "fine-tuning"),
        ("longformer", "head-only"),
        ("roberta", "prefix-tuning+lora"),
    ],
)
def test_every_method_ends_in_accuracy_and_gives_its_scores_again(tmp_path: Path, family: str, method: str) -> None:
    settings, run_dir = question_settings(tmp_path, family, method=method), tmp_path / "run"
    metrics = train(settings, run_dir).metrics
    assert metrics["status"] == "finished" and "micro_f1" not in metrics["dev"]
    assert not (run_dir / "labels.json").exists()
    task = load_task("wikihop", settings.data_dir)
    stored = read_predictions(run_dir / "predictions" / "dev.jsonl")
    assert stored.ids == tuple(question.id for question in task.dev)
    assert stored.candidates == tuple(question.candidates for question in task.dev)
    right = [logits.argmax() == label for logits, label in zip(stored.logits, stored.labels, strict=True)]
    assert metrics["dev"]["accuracy"] == np.mean(right)

    tokenizer = AutoTokenizer.from_pretrained(run_dir / "tokenizer")
    if (run_dir / "model").is_dir():
        model = CandidateScorer.from_pretrained(run_dir / "model")
    else:
        model = candidate_scorer(AutoModel.from_pretrained(settings.model), add_special_tokens(tokenizer))
        if not (run_dir / "adapter").is_dir():
            return
        model = PeftModel.from_pretrained(model, str(run_dir / "adapter"))
    dataset = WikiHopDataset(task.dev, tokenizer, 80)
    with torch.no_grad():
        for row, question in enumerate(task.dev):
            logits = model.eval()(**CandidateCollator(1)([dataset[row]])).logits[0]
            count = len(question.candidates)
            assert logits.tolist() == pytest.approx(stored.logits[row, :count].tolist(), abs=1e-4)


def test_candidates_are_shuffled_anew_in_every_epoch_of_training_only(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class FirstQuestion(TrainerCallback):
        def on_step_end(self, *_: Any, train_dataloader: Any = None, **__: Any) -> None:
            seen.append(train_dataloader.dataset[0].candidate_part.tolist())

    train(question_settings(tmp_path, epochs=3), tmp_path / "run", callbacks=[FirstQuestion()])
    assert len(seen) == 9
    assert len({str(part) for part in seen}) > 1
    assert all(seen[step] == seen[step - step % 3] for step in range(9)), "within an epoch nothing changes"


def test_questions_that_do_not_fit_count_as_wrong_and_are_told(tmp_path: Path) -> None:
    settings = question_settings(tmp_path)
    file = Path(str(settings.data_dir)) / "dev.json"
    records = json.loads(file.read_text())
    for number, record in enumerate(records):
        others = [f"w{word} " * 20 for word in range(5, 10)] if number % 2 else ["w50"]
        record["candidates"] = [record["answer"], *others]
    file.write_text(json.dumps(records))
    notes: list[str] = []
    run = train(settings, tmp_path / "run", progress=Notes(notes))
    assert any(
        "dev questions have candidates that leave no room" in note and "count as wrong" in note for note in notes
    )
    stored = read_predictions(tmp_path / "run" / "predictions" / "dev.jsonl")
    unread = [row for row, names in enumerate(stored.candidates or ()) if len(names) > 2]
    assert unread and all(stored.logits[row].argmax() != stored.labels[row] for row in unread)
    assert run.metrics["dev"]["documents"] == 4


def test_rows_have_bm25_as_their_baseline(tmp_path: Path) -> None:
    settings = question_settings(tmp_path, task="hybridqa", method="head-only", num_virtual_tokens=None)
    for path in Path(str(settings.data_dir)).iterdir():
        questions = json.loads(path.read_text())
        for question in questions:  # the words of the question stand in the support of its answer
            question["supports"] = [
                f"w3 {name} {question['query'] if name == question['answer'] else ''}"
                for name in question["candidates"]
            ]
        path.write_text(json.dumps(questions))
    (tmp_path / "wikihop" / "test.json").write_text((tmp_path / "wikihop" / "dev.json").read_text())
    metrics = train(settings, tmp_path / "run", progress=Notes()).metrics
    assert metrics["baseline"]["model"].startswith("BM25") and metrics["baseline"]["test"]["accuracy"] == 1.0
    assert 0 <= metrics["test"]["accuracy"] <= 1

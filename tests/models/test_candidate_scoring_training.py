"""Candidate scoring end to end: a tiny frozen encoder learns invented questions through its prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

from prefixprop import PrefixPropagationConfig
from prefixprop.data import CandidateCollator, WikiHopDataset
from prefixprop.models import adapt_candidate_scorer, candidate_scorer

from tiny import tiny_model
from tiny_questions import FIRST_SPECIAL_TOKEN, invented, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
QUESTIONS = invented(4, seed=2)


def adapted() -> Any:
    model = candidate_scorer(tiny_model(task="FEATURE_EXTRACTION"), FIRST_SPECIAL_TOKEN)
    return adapt_candidate_scorer(model, PrefixPropagationConfig(num_virtual_tokens=4, prefix_dropout=0.0))


def data(shuffle: bool) -> WikiHopDataset:
    return WikiHopDataset(QUESTIONS, TOKENIZER, 80, shuffle=shuffle)


def whole_batch(shuffle: bool) -> dict[str, Tensor]:
    dataset = data(shuffle)
    return CandidateCollator(1)([dataset[index] for index in range(len(dataset))])


def test_prefix_propagation_learns_four_questions() -> None:
    model, batch = adapted(), whole_batch(shuffle=False)
    assert len(batch["input_ids"]) > 4
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    losses, accuracies = [], []
    for _ in range(60):
        output = model.train()(**batch)
        losses.append(output.loss.item())
        accuracies.append((output.logits.argmax(dim=1) == batch["labels"]).float().mean().item())
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0] and accuracies[-1] == 1.0 > accuracies[0]
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)


def test_trainer_runs_it(tmp_path: Path) -> None:
    dataset, model = data(shuffle=True), adapted()
    trainer = Trainer(
        model,
        TrainingArguments(
            tmp_path,
            num_train_epochs=2,
            per_device_train_batch_size=1,
            per_device_eval_batch_size=3,
            gradient_accumulation_steps=4,
            learning_rate=1e-4,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=True,
        ),
        data_collator=CandidateCollator(1),
        train_dataset=dataset,
        eval_dataset=data(shuffle=False),
        compute_metrics=lambda result: {
            "accuracy": float((result.predictions.argmax(axis=1) == result.label_ids).mean())
        },
    )
    with torch.no_grad():
        fixed, shuffled = (model.eval()(**whole_batch(shuffle)) for shuffle in (False, True))
    labels = whole_batch(shuffle=False)["labels"]
    before = trainer.evaluate()
    assert before["eval_loss"] == pytest.approx(fixed.loss.item(), abs=1e-5)
    assert before["eval_accuracy"] == (fixed.logits.argmax(dim=1) == labels).float().mean().item()
    prefix = model.get_prefix().detach().clone()
    result = trainer.train()
    # The steps are too small to change the loss much, so this is the mean over questions, not over chunks.
    assert result.training_loss == pytest.approx(shuffled.loss.item(), abs=0.02)
    assert not torch.equal(model.get_prefix(), prefix)
    predicted = trainer.predict(data(shuffle=False))
    assert predicted.predictions.shape == fixed.logits.shape and predicted.label_ids.tolist() == labels.tolist()
    assert dataset[0].candidate_part.tolist() != data(shuffle=True)[0].candidate_part.tolist()  # of epoch 0

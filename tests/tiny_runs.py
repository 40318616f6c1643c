"""Run directories of tiny random models, as `prefixprop train` leaves them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from prefixprop.data import CandidateCollator, Question, WikiHopDataset
from prefixprop.evaluate import PredictionSet, fit_temperature, write_predictions
from prefixprop.models import adapt_candidate_scorer, candidate_scorer
from prefixprop.models.base_model import folder_fingerprint
from prefixprop.train import RunDirectory, RunSettings, settings_to_yaml

from tiny import CONFIGS, METHODS, tiny_model
from tiny_questions import FIRST_SPECIAL_TOKEN, sentence, tiny_tokenizer

LABEL_NAMES = ("art", "law", "tax")
MAX_LENGTH = 32


def framing_tokenizer() -> PreTrainedTokenizerFast:
    """The tiny tokenizer with `<s>` in front of a text and `</s>` behind it."""
    tokenizer = tiny_tokenizer(special_tokens=False)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def texts(count: int, seed: int = 0, longest: int = 28) -> list[str]:
    """Random sentences of 1 to `longest` words; with the two special tokens 30 of them are read whole."""
    generator = random.Random(seed)
    return [sentence(generator, generator.randint(1, longest)) for _ in range(count)]


def write_rows(path: Path, documents: list[str], seed: int = 0, label_names: tuple[str, ...] = LABEL_NAMES) -> Path:
    """Documents as labelled JSON lines, with ids d0, d1, …"""
    generator = random.Random(seed)
    rows = [
        {"id": f"d{number}", "text": text, "label": generator.choice(label_names)}
        for number, text in enumerate(documents)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_run(
    folder: Path,
    method: str = "prefix-propagation",
    family: str = "longformer",
    label_names: tuple[str, ...] = LABEL_NAMES,
    weights: int = 7,
    **settings: Any,
) -> Path:
    """A finished run on files of one's own, in `folder`/run; its base model, in `folder`/base, is random.

    `weights` is the seed of what it trained.
    """
    run, base_folder = folder / "run", folder / "base"
    run.mkdir(parents=True)
    tiny_model(family).save_pretrained(base_folder)
    model = _trained(method, tiny_model(family, num_labels=len(label_names)), weights)
    tokenizer = framing_tokenizer()
    tokenizer.save_pretrained(run / "tokenizer")
    _save_weights(method, model, run)
    files = {
        f"{split}_files": [str(write_rows(folder / f"{split}.jsonl", texts(30, seed), seed, label_names))]
        for seed, split in enumerate(("train", "dev", "test"))
    }
    config = {
        "task": None, "model": str(base_folder), "model_revision": folder_fingerprint(base_folder),
        "method": method, "max_length": MAX_LENGTH, "seed": 1,
        "text_column": "text", "label_column": "label", "id_column": "id", **files, **settings,
    }  # fmt: skip
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (run / "labels.json").write_text(json.dumps(label_names), encoding="utf-8")
    predictions = {
        split: _one_by_one(model, tokenizer, folder / f"{split}.jsonl", label_names) for split in ("dev", "test")
    }
    _write_results(run, predictions)
    return run


def make_wikihop_run(folder: Path, questions: dict[str, list[Question]], method: str = "prefix-propagation") -> Path:
    """A finished run on questions, whose data lies in `folder`/data."""
    run, data, base_folder = folder / "run", folder / "data", folder / "base"
    run.mkdir(parents=True)
    data.mkdir()
    for split, asked in questions.items():
        records = [asdict(question) | {"answer": question.candidates[question.answer]} for question in asked]
        (data / f"{split}.json").write_text(json.dumps(records), encoding="utf-8")
    encoder = tiny_model(task="FEATURE_EXTRACTION")
    encoder.save_pretrained(base_folder)
    encoder.config.name_or_path = str(base_folder)
    scorer = candidate_scorer(encoder, FIRST_SPECIAL_TOKEN)
    model: Any = scorer
    if method == "prefix-propagation":
        model = adapt_candidate_scorer(scorer, METHODS["propagation"](num_virtual_tokens=4))
    elif method == "head-only":
        scorer.freeze_encoder()
    _spread(model)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(run / "tokenizer")
    _save_weights(method, model, run)
    config = {"task": "wikihop", "data_dir": str(data), "model": str(base_folder), "method": method, "max_length": 96}
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    predictions = {split: _one_question_at_a_time(model, tokenizer, questions[split]) for split in ("dev", "test")}
    _write_results(run, predictions)
    return run


def make_results(run: Path, skill: float = 1.0, documents: int = 40, **settings: Any) -> Path:
    """A finished run without a model, whose invented predictions are better the more `skill` it has."""
    resolved = RunSettings(**({"task": "hyperpartisan", "epochs": 3, "max_length": 64} | settings))
    questions, generator = resolved.answers_questions, np.random.default_rng([resolved.seed, int(100 * skill)])
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(settings_to_yaml(resolved), encoding="utf-8")
    if not questions:
        (run / "labels.json").write_text(json.dumps(LABEL_NAMES[:2]), encoding="utf-8")
    lengths = generator.integers(20, 900, 60).tolist()
    predictions = {split: _invented_predictions(generator, skill, documents, questions) for split in ("dev", "test")}
    history = [{"epoch": epoch, "step": 5 * epoch, "dev_ece": 0.05 * epoch / skill} for epoch in (1, 2, 3)]
    _write_results(run, predictions, lengths, history)
    parameters = {"backbone": 10_000, "prefix": 5, "alpha": 0, "head": 40, "rest": 0, "trainable": 45}
    finish_again(run, seconds=30.0 * skill, epochs=3, parameters=parameters)
    return run


def finish_again(run: Path, **metrics: Any) -> None:
    """Change metrics, and make the manifest fit whatever the files of the run are now."""
    RunDirectory(run).finish(json.loads((run / "metrics.json").read_text()) | metrics)


def _invented_predictions(generator: Any, skill: float, documents: int, questions: bool) -> PredictionSet:
    labels = np.random.default_rng(documents).integers(0, 2, documents)  # the same documents in all runs
    logits = generator.normal(size=(documents, 2))
    logits[np.arange(documents), labels] += skill
    ids, known = tuple(f"d{number}" for number in range(documents)), tuple(labels.tolist())
    if questions:
        return PredictionSet.of_candidates(ids, known, list(logits), [("Oslo", "Rome")] * documents)
    return PredictionSet(ids, known, logits, label_names=LABEL_NAMES[:2])


def _trained(method: str, model: Any, seed: int) -> Any:
    if method.startswith("prefix-"):
        prefix, _, lora = method.removeprefix("prefix-").partition("+")
        beside = LoraConfig() if lora else None
        model = get_peft_model(model, CONFIGS[prefix](task_type="SEQ_CLS", num_virtual_tokens=4, lora=beside))
    elif method == "lora":
        model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"]))
    elif method == "head-only":
        model.base_model.requires_grad_(False)
    return _spread(model, seed)


def _spread(model: Any, seed: int = 7) -> Any:
    """Change what is trained, so that a model without it gives other numbers."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    return model.eval()


def _save_weights(method: str, model: Any, run: Path) -> None:
    if method == "fine-tuning":
        model.save_pretrained(run / "model")
    elif method == "head-only":
        (run / "head").mkdir()
        tensors = {name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad}
        save_file(tensors, run / "head" / "head.safetensors")
    else:
        model.save_pretrained(run / "adapter")


@torch.no_grad()
def _one_by_one(model: Any, tokenizer: Any, path: Path, label_names: tuple[str, ...]) -> PredictionSet:
    """Every document in a batch of its own, through the tokenizer and the model as Hugging Face has them."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    logits = []
    for row in rows:
        encoded = tokenizer(row["text"], truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        logits.append(model(**inputs).logits[0].numpy())
    ids, labels = tuple(row["id"] for row in rows), tuple(label_names.index(row["label"]) for row in rows)
    return PredictionSet(ids, labels, np.stack(logits), label_names=label_names)


@torch.no_grad()
def _one_question_at_a_time(model: Any, tokenizer: Any, questions: list[Question]) -> PredictionSet:
    dataset, collate = WikiHopDataset(questions, tokenizer, 96), CandidateCollator(1)
    logits = [model(**collate([dataset[place]])).logits[0].numpy() for place in range(len(dataset))]
    candidates = [question.candidates for question in questions]
    return PredictionSet.of_candidates(
        [question.id for question in questions], [question.answer for question in questions], logits, candidates
    )


def _write_results(
    run: Path, predictions: dict[str, PredictionSet], lengths: Sequence[int] = (), history: Sequence[object] = ()
) -> None:
    environment = {"packages": {"prefixprop": "0.1.0"}, "device": "cpu", "seed": 1}
    (run / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    (run / "lengths.json").write_text(json.dumps(lengths), encoding="utf-8")
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history), encoding="utf-8")
    dev = predictions["dev"]
    temperature = fit_temperature(dev.logits, dev.known_labels)
    metrics: dict[str, Any] = {"temperature": temperature.value, "status": "finished", "best_epoch": 1}
    for split, predicted in predictions.items():
        write_predictions(run / "predictions" / f"{split}.jsonl", predicted)
        metrics[split] = predicted.evaluate()
        metrics[f"{split}_calibrated"] = predicted.with_temperature(temperature).evaluate()
    RunDirectory(run).finish(metrics)

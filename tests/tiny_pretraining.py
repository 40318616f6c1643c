"""A tiny RoBERTa or BERT with a masked-language-model head, in a folder, and text to train it on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from prefixprop.lengthen import LengthenSettings

from tiny import tiny_model
from tiny_questions import WORDS
from tiny_runs import framing_tokenizer

ORIGINAL_LENGTH, MAX_LENGTH = 32, 64


def masking_tokenizer() -> PreTrainedTokenizerFast:
    """The framing tokenizer, whose last word is the mask."""
    tokenizer = framing_tokenizer()
    tokenizer.mask_token = WORDS[-1]
    tokenizer.model_max_length = ORIGINAL_LENGTH
    return tokenizer


def write_original(folder: Path, model_type: str = "roberta", head: bool = True, **overrides: Any) -> Path:
    """A folder as `from_pretrained` reads it."""
    positions = ORIGINAL_LENGTH + (2 if model_type == "roberta" else 0)
    options: dict[str, Any] = {"max_position_embeddings": positions, "hidden_dropout_prob": 0.1, **overrides}
    encoder = tiny_model(model_type, "FEATURE_EXTRACTION", **options)
    if head:
        encoder = AutoModelForMaskedLM.from_config(encoder.config)
    encoder.save_pretrained(folder)
    masking_tokenizer().save_pretrained(folder)
    return folder


def write_text(path: Path, documents: int = 12, seed: int = 0) -> Path:
    """Documents of eight of the words, which is quickly learnt."""
    generator = random.Random(seed)
    lines = []
    for _ in range(documents):
        words = generator.choices(WORDS[:8], k=generator.randint(20, 200))
        lines.append(json.dumps({"text": " ".join(words)}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def tiny_settings(model: Path, text: Path, **changes: Any) -> LengthenSettings:
    options: dict[str, Any] = {
        "max_length": MAX_LENGTH,
        "attention_window": 16,
        "steps": 6,
        "batch_size": 4,
        "device_batch_size": 2,
        "learning_rate": 1e-2,
        "checkpoint_seconds": 0.0,
    }
    return LengthenSettings(model=str(model), text=(str(text),), **options | changes)

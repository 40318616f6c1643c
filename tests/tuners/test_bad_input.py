"""Bad input ends in one sentence that says what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from tiny import HEADS, adapt, batch, both_methods, random_lora, tiny_model

WEIGHTS = "adapter_model.safetensors"


def test_unsupported_family_is_named() -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=50, dim=16, n_layers=1, n_heads=2))
    with pytest.raises(ValueError, match=r"'distilbert' model; use one of these model types: bert, .*longformer"):
        adapt(model, "propagation")


@pytest.mark.parametrize("task", HEADS)
def test_modules_to_save_must_be_there(task: str) -> None:
    with pytest.raises(ValueError, match=r"modules_to_save: \w+ has no module 'nope'; it has .* and their parts"):
        adapt(tiny_model("roberta", task), "tuning", task, modules_to_save=["nope"])
    adapted = adapt(tiny_model("roberta", task), "tuning", task, modules_to_save=["output.dense"])
    assert any("output.dense.modules_to_save" in name for name, _ in adapted.named_parameters())


@pytest.mark.parametrize("layout", ["paper", "reference"])
@both_methods
@pytest.mark.parametrize("family", ["longformer", "roberta", "bert"])
def test_sequences_up_to_the_limit_and_no_further(family: str, method: str, layout: str) -> None:
    positions = 130 if family != "longformer" else 66
    model = tiny_model(family, max_position_embeddings=positions, attention_window=[8, 8, 8])
    adapted = adapt(model, method, length=4, layout=layout)
    room = positions - (0 if family == "bert" else 2) - (4 if layout == "reference" else 0)
    assert torch.isfinite(adapted(**batch(model, [room])).logits).all()
    for inputs in (batch(model, [room + 1]), batch(model, [room + 9, 3])):
        length = inputs["attention_mask"].sum(dim=1).max()
        with pytest.raises(ValueError, match=f"sequence of {length} tokens is too long.*at most {room}.*lengthen"):
            adapted(**inputs)
    with pytest.raises(ValueError, match=f"at most {room}"):
        adapted(**batch(model, [5]), position_ids=torch.full((1, 5), positions))
    rotary = tiny_model("modernbert", max_position_embeddings=20)  # has no end
    assert torch.isfinite(adapt(rotary, method, layout=layout)(**batch(rotary, [50, 30])).logits).all()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"model_type": "roberta"}, "model_type='longformer', but the model here has 'roberta'"),
        ({"num_hidden_layers": 2, "attention_window": [8, 8]}, "num_layers=3, but the model here has 2"),
        ({"hidden_size": 16}, "token_dim=32, but the model here has 16"),
    ],
)
@both_methods
def test_adapter_of_another_model(method: str, other: dict, message: str, tmp_path: Path) -> None:
    adapt(tiny_model(), method).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{message}; load it onto the model it was trained on"):
        PeftModel.from_pretrained(tiny_model(**other), tmp_path)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("prefixes", lambda prefix: prefix[:2].clone(), r"shape \[2, .*need \[3, "),
        ("prefixes", lambda _: None, "has no tensor"),
        ("layer.1.attention.self.value.lora_B", lambda _: None, "has no tensor '.*layer.1.*lora_B"),
        ("prefixes", lambda prefix: prefix * float("nan"), "not finite floats"),
        ("prefixes", lambda prefix: prefix.to(torch.int8), "not finite floats"),
        *(("", kept, "adapter_model.safetensors is damaged") for kept in (0, 5, 100, 2000)),
    ],
)
@both_methods
def test_damaged_adapter_file(method: str, part: str, change: Any, message: str, tmp_path: Path) -> None:
    """Truncated, or the first tensor of some name changed, or taken out."""
    adapt(tiny_model(), method, lora=random_lora()).save_pretrained(tmp_path)
    if part:
        saved = load_file(tmp_path / WEIGHTS)
        name = next(name for name in saved if part in name)
        changed = change(saved.pop(name))
        save_file(saved if changed is None else saved | {name: changed}, tmp_path / WEIGHTS)
    else:
        os.truncate(tmp_path / WEIGHTS, change)
    with pytest.raises(ValueError, match=f"{message}.*save the adapter again"):
        PeftModel.from_pretrained(tiny_model(), tmp_path)
    with pytest.raises(ValueError, match=message):
        adapt(tiny_model(), method).load_adapter(tmp_path, "second")


def test_pickled_adapters_are_refused(tmp_path: Path) -> None:
    adapt(tiny_model(), "propagation").save_pretrained(tmp_path, safe_serialization=False)
    assert (tmp_path / "adapter_model.bin").exists()
    with pytest.raises(ValueError, match=r"adapter_model.bin, a pickle.*safetensors only.*safe_serialization=True"):
        PeftModel.from_pretrained(tiny_model(), tmp_path)


def test_two_methods_on_one_model_are_refused() -> None:
    model = adapt(tiny_model(), "propagation")
    with pytest.raises(ValueError, match=r"already carries another prefix method; call unload\(\)"):
        adapt(model.get_base_model(), "tuning")

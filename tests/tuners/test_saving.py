"""Saving and loading through peft."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

from prefixprop.models import load_embedded
from prefixprop.tuners import AUTO_CLASSES

from tiny import (
    HEADS,
    METHODS,
    adapt,
    assert_same_bits,
    batch,
    every_family,
    random_lora,
    randomised,
    tensors,
    tiny_model,
    trained_names,
)

RELOAD = """
import sys, torch, peft, prefixprop
torch.set_num_threads(1)
for folder, auto in zip(sys.argv[1::2], sys.argv[2::2]):
    labels = {"num_labels": 3} if auto.endswith("Classification") else {}
    model = getattr(peft, auto).from_pretrained(folder + "/adapter", **labels)
    output = model(**torch.load(folder + "/inputs.pt", weights_only=True))
    torch.save({k: v for k, v in output.items() if isinstance(v, torch.Tensor)}, folder + "/outputs.pt")
"""


def test_a_fresh_process_loads_the_same_bits(tmp_path: Path) -> None:
    expected = {}
    for method, task in product(METHODS, HEADS):
        folder = tmp_path / method / task
        family = {"TOKEN_CLS": "roberta", "QUESTION_ANS": "bert"}.get(task, "longformer")
        tiny_model(family, task).save_pretrained(folder / "base")
        model = randomised(adapt(HEADS[task].from_pretrained(folder / "base"), method, task), 0.3)
        inputs = batch(model, [20, 11])
        torch.save(inputs, folder / "inputs.pt")
        model.save_pretrained(folder / "adapter")
        expected[folder] = tensors(model(**inputs))
    asked = [word for folder in expected for word in (str(folder), AUTO_CLASSES[folder.name].__name__)]
    subprocess.run([sys.executable, "-c", RELOAD, *asked], check=True, timeout=300)
    for folder, outputs in expected.items():
        found = torch.load(folder / "outputs.pt", weights_only=True)
        assert found.keys() == outputs.keys()
        assert all(torch.equal(found[name], outputs[name]) for name in outputs), folder


PEFT_TYPES = {"propagation": "PREFIX_PROPAGATION", "tuning": "LONG_PREFIX_TUNING", "reading": "PREFIX_PROPAGATION"}
DORA: dict[str, Any] = {"use_dora": True, "lora_alpha": 3}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gates": {"gate": True},
    "alpha": {"kernel": "rbf", "alpha": 0.25, "kernel_length_scale": 2.0},
    "alpha of layers, gates, DoRA": {"kernel": "rbf", "alpha_mode": "layer", "gate": True, "lora": DORA},
    "alpha of heads": {"kernel": "poly", "alpha_mode": "head", "kernel_degree": 4},
    "alpha of queries": {"kernel": "linear", "alpha_mode": "query"},
}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *product(METHODS, ["plain", "gates", "alpha of layers, gates, DoRA"]),
        ("propagation", "alpha"),
        ("propagation", "alpha of queries"),
        ("tuning", "alpha of heads"),
        ("reading", "plain"),
        ("reading", "gates"),
    ],
)
@every_family
def test_what_was_trained_comes_back(family: str, method: str, options: str, tmp_path: Path) -> None:
    given = OPTIONS[options]
    lora = {"lora": random_lora(**given["lora"])} if "lora" in given else {}
    model = randomised(adapt(tiny_model(family), method, **given | lora))
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert any(torch.equal(tensor, model.get_prefix()) for tensor in saved.values())
    trained = trained_names(model)
    assert len(saved) == len(trained)
    assert sum(tensor.numel() for tensor in saved.values()) == model.get_nb_trainable_parameters()[0]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["model_type"]) == (PEFT_TYPES[method], family)
    assert (config["num_layers"], config["token_dim"]) == (3, 32)
    assert (config.get("read_only", False), config["pooling"] == "prefix") == (method == "reading",) * 2

    inputs = batch(model, [20, 11])
    again = PeftModel.from_pretrained(tiny_model(family), tmp_path, is_trainable=True).eval()
    assert trained_names(again) == trained
    assert_same_bits(again(**inputs), model(**inputs))
    frozen, other = PeftModel.from_pretrained(tiny_model(family), tmp_path), adapt(tiny_model(family), method)
    assert not trained_names(frozen)
    other.load_adapter(tmp_path, "second")
    other.set_adapter("second")
    for loaded in (frozen, other):  # on the CPU, PyTorch rounds some products otherwise where a weight is frozen
        torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)
    for own, get in (("kernel", "get_alpha"), ("gate", "get_gates")):
        if own in given:
            assert torch.equal(*(torch.as_tensor(getattr(each, get)()) for each in (other, model)))
            with pytest.raises(ValueError, match=r"'default' has no (kernel, so no alpha|gates); set "):
                getattr(other, get)("default")


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "DoRA": {"use_dora": True},
    "rsLoRA": {"use_rslora": True, "lora_alpha": 3},
    "every linear layer": {"target_modules": "all-linear"},
    "one layer": {"layers_to_transform": [1], "target_modules": ["query"]},
    "ranks": {"rank_pattern": {"value": 5}},
    "biases": {"bias": "lora_only"},
    "tokens": {"trainable_token_indices": {"word_embeddings": [5, 6]}},
}


@pytest.mark.parametrize(("variant", "method"), list(zip(VARIANTS, [*METHODS] * 4, strict=True)))
def test_one_folder_holds_a_prefix_and_lora_to_the_bit(variant: str, method: str, tmp_path: Path) -> None:
    tiny_model("roberta").save_pretrained(tmp_path / "base")
    lora = LoraConfig(**{"r": 2, "target_modules": ["query", "value"]} | VARIANTS[variant])
    base = type(tiny_model("roberta")).from_pretrained(tmp_path / "base")
    model = randomised(adapt(base, method, lora=lora))
    model.save_pretrained(tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    trained = trained_names(model)
    assert len(load_file(tmp_path / "adapter" / "adapter_model.safetensors")) == len(trained)  # each once, heads too
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["lora"]["r"] == 2 and config["lora"]["peft_type"] == "LORA"

    inputs = batch(model, [20, 11])
    inputs["input_ids"][0, 3] = 5
    for loaded in (
        PeftModel.from_pretrained(tiny_model("roberta"), tmp_path / "adapter"),
        PeftModel.from_pretrained(tiny_model("roberta"), tmp_path / "adapter", low_cpu_mem_usage=True),
        AUTO_CLASSES["SEQ_CLS"].from_pretrained(tmp_path / "adapter", num_labels=3),
    ):
        assert_same_bits(loaded(**inputs), model(**inputs))
        assert not trained_names(loaded) or variant == "biases"  # which peft leaves trainable
    again = PeftModel.from_pretrained(tiny_model("roberta"), tmp_path / "adapter", is_trainable=True)
    assert trained_names(again) == trained


LABELS = {task: {"num_labels": 3} for task in ("SEQ_CLS", "TOKEN_CLS")}
TOKENS = {"input_ids": torch.tensor([[0, 41, 52, 63, 2]]), "attention_mask": torch.ones(1, 5, dtype=torch.long)}


def embedded_with_adapter(name: str, method: str, task: str = "SEQ_CLS") -> Any:
    """An embedded model with an adapter that changes what it says."""
    base = load_embedded(name)[0](task, **LABELS.get(task, {}))
    lora = LoraConfig(task_type=task, target_modules=["query", "value"])
    return randomised(get_peft_model(base, lora) if method == "lora" else adapt(base, method, task), 0.1).eval()


@pytest.mark.parametrize(
    ("name", "method", "task"),
    [
        ("longformer-mini-4096", "propagation", "SEQ_CLS"),
        ("longformer-mini-4096-mlm", "tuning", "SEQ_CLS"),
        ("roberta-mini-512", "lora", "SEQ_CLS"),
        *(("roberta-mini-512", "propagation", task) for task in AUTO_CLASSES if task != "SEQ_CLS"),
    ],
)
def test_adapters_of_embedded_models_load_by_name(name: str, method: str, task: str, tmp_path: Path) -> None:
    model = embedded_with_adapter(name, method, task)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    noted = json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert noted == load_embedded(name)[0].noted
    labels = LABELS.get(task, {})
    loaded = AUTO_CLASSES[task].from_pretrained(tmp_path, **labels)
    torch.testing.assert_close(tensors(loaded(**TOKENS)), tensors(model(**TOKENS)), rtol=1e-5, atol=1e-5)
    half = AUTO_CLASSES[task].from_pretrained(tmp_path, dtype=torch.bfloat16, **labels)
    assert half.get_input_embeddings().weight.dtype == torch.bfloat16


@pytest.mark.parametrize("method", ["propagation", "lora"])
def test_saving_an_embedded_model_does_not_ask_the_hub(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    asked: list[str] = []
    monkeypatch.setattr("peft.utils.other.file_exists", lambda repo, *_, **__: asked.append(repo))
    monkeypatch.setattr("socket.socket.connect", lambda _, address: asked.append(str(address)))
    embedded_with_adapter("roberta-mini-512", method).save_pretrained(tmp_path)
    assert asked == []
    assert not any("word_embeddings" in name for name in load_file(tmp_path / "adapter_model.safetensors"))

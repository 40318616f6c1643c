"""Saving and loading through peft."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file

from tiny import HEADS, METHODS, adapt, assert_same_bits, batch, both_methods, every_family, tensors, tiny_model

RELOAD = """
import sys, torch, peft, prefixprop
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    task = folder.rsplit("/", 1)[1]
    auto = {"SEQ_CLS": peft.AutoPeftModelForSequenceClassification,
            "TOKEN_CLS": peft.AutoPeftModelForTokenClassification,
            "QUESTION_ANS": peft.AutoPeftModelForQuestionAnswering,
            "FEATURE_EXTRACTION": peft.AutoPeftModelForFeatureExtraction}[task]
    labels = {"num_labels": 3} if task in ("SEQ_CLS", "TOKEN_CLS") else {}
    model = auto.from_pretrained(folder + "/adapter", **labels)
    output = model(**torch.load(folder + "/inputs.pt", weights_only=True))
    torch.save({k: v for k, v in output.items() if isinstance(v, torch.Tensor)}, folder + "/outputs.pt")
"""


def test_a_fresh_process_loads_the_same_bits(tmp_path: Path) -> None:
    expected = {}
    for method, task in product(METHODS, HEADS):
        folder = tmp_path / method / task
        family = {"SEQ_CLS": "longformer", "TOKEN_CLS": "roberta", "QUESTION_ANS": "bert"}.get(task, "longformer")
        tiny_model(family, task).save_pretrained(folder / "base")
        base = HEADS[task].from_pretrained(folder / "base")
        model = adapt(base, method, task)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(std=0.3)
        inputs = batch(base, [20, 11])
        torch.save(inputs, folder / "inputs.pt")
        model.save_pretrained(folder / "adapter")
        expected[folder] = tensors(model(**inputs))
    subprocess.run([sys.executable, "-c", RELOAD, *map(str, expected)], check=True, timeout=300)
    for folder, outputs in expected.items():
        found = torch.load(folder / "outputs.pt", weights_only=True)
        assert found.keys() == outputs.keys()
        assert all(torch.equal(found[name], outputs[name]) for name in outputs), folder


@both_methods
@every_family
def test_the_file_holds_the_prefix_and_the_head(family: str, method: str, tmp_path: Path) -> None:
    model = adapt(tiny_model(family), method)
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    saved = load_file(tmp_path / "adapter_model.safetensors")
    (prefix,) = [name for name in saved if "prefixes" in name]
    assert torch.equal(saved[prefix], model.get_prefix())
    assert all("classifier" in name for name in saved if name != prefix)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == ("PREFIX_PROPAGATION" if method == "propagation" else "LONG_PREFIX_TUNING")
    assert (config["model_type"], config["num_layers"], config["token_dim"]) == (family, 3, 32)

    again = PeftModel.from_pretrained(tiny_model(family), tmp_path)
    inputs = batch(model, [13])
    assert_same_bits(again(**inputs), model(**inputs))
    assert not any(parameter.requires_grad for parameter in again.parameters())
    trainable = PeftModel.from_pretrained(tiny_model(family), tmp_path, is_trainable=True)
    assert trainable.get_prefix().requires_grad


def test_meta_device_loading(tmp_path: Path) -> None:
    model = adapt(tiny_model(), "propagation")
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny_model(), tmp_path, low_cpu_mem_usage=True)
    inputs = batch(model, [13])
    assert_same_bits(again(**inputs), model(**inputs))

"""The golden cases: computed in float64 from the equations, or written by the authors' own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    LongformerConfig,
    LongformerForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig

GOLDEN = Path(__file__).parent / "golden"
# WikiHop's have inputs and a model of their own: models/test_candidate_scoring_golden.py.
CASES = sorted(path.parent for path in GOLDEN.glob("*/*/case.json") if not path.parent.name.startswith("wh_"))
MODELS: dict[str, Any] = {
    "longformer": (LongformerConfig, LongformerForSequenceClassification),
    "roberta": (RobertaConfig, RobertaForSequenceClassification),
}
CONFIGS: dict[str, Any] = {
    "eq1": PrefixPropagationConfig,
    "eq2": PrefixTuningConfig,
    "eq3": PrefixPropagationConfig,
}
TOLERANCE = 3e-5


def build(folder: Path, case: dict[str, Any]) -> Any:
    config_class, model_class = MODELS[case["weights"]]
    model = model_class(config_class(**json.loads((folder / "config.json").read_text())))
    model.load_state_dict(load_file(GOLDEN / "weights" / f"{case['weights']}.safetensors"), strict=True)
    if case["method"] == "none":
        return model.eval()
    kernel = {}
    if case["method"] == "eq3":
        kernel = {"kernel": case["kernel"], "alpha": case["alpha"], "alpha_mode": "layer"}
    config = CONFIGS[case["method"]](
        task_type="SEQ_CLS",
        num_virtual_tokens=case["prefix_length"],
        layout=case["layout"],
        pooling=case["pooling"],
        **kernel,
    )
    adapted = get_peft_model(model, config)
    saved = load_file(folder / "prefix.safetensors")
    adapted.set_prefix(saved["prefix_kv" if case["method"] == "eq2" else "propagation"])
    if kernel:
        assert torch.equal(adapted.get_alpha(), saved["alpha"])
    return adapted.eval()


def gradient(model: Any, name: str) -> Tensor:
    if name in ("propagation", "prefix_kv"):
        return model.get_prefix().grad
    if name == "alpha":
        return model.get_alpha().grad
    ending = name.removeprefix("classifier.")
    (found,) = [
        parameter.grad
        for key, parameter in model.named_parameters()
        if "classifier." in key and key.endswith(ending) and parameter.grad is not None
    ]
    return found


def test_all_cases_are_here() -> None:
    assert len(CASES) == 24


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_golden(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    model = build(folder, case)
    inputs, expected = load_file(folder / "inputs.safetensors"), load_file(folder / "outputs.safetensors")
    last_layer: list[Any] = []
    backbone = getattr(model, "base_model", model).base_model
    backbone.encoder.layer[-1].register_forward_hook(lambda *call: last_layer.append(call[-1]))

    output = model(**inputs, output_hidden_states=True)
    output.loss.backward()

    real = inputs["attention_mask"].bool()
    states = last_layer[0][0] if isinstance(last_layer[0], tuple) else last_layer[0]
    found = {"logits": output.logits, "loss": output.loss, "hidden_states": output.hidden_states[-1]}
    found["prefix_states"] = states[:, : case.get("prefix_length", 0)]
    errors: dict[str, float] = {}
    for name, value in expected.items():
        is_gradient = name not in found
        error = ((gradient(model, name.removeprefix("grad.")) if is_gradient else found[name]) - value).detach().abs()
        error = error[real] if name == "hidden_states" else error
        errors[name] = float(error.max() / (value.abs().max() if is_gradient else 1))
    print(f"{folder.name}: largest error {max(errors.values()):.1e} ({max(errors, key=errors.__getitem__)})")
    assert {name: error for name, error in errors.items() if error > TOLERANCE} == {}
    assert "hidden_states" in errors
    assert torch.isfinite(output.logits).all()

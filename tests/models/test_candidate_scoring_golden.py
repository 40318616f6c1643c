"""WikiHop's golden cases, written by the authors' own code: forward, loss and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from torch import Tensor
from transformers import LongformerConfig, LongformerModel

from prefixprop import PrefixPropagationConfig
from prefixprop.data import CandidateCollator
from prefixprop.data.wikihop import TokenizedQuestion, split_into_chunks
from prefixprop.models import adapt_candidate_scorer, candidate_scorer

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted((GOLDEN / "reference").glob("wh_*"))
TOLERANCE = 1e-5


def build(folder: Path, case: dict[str, Any]) -> Any:
    config = LongformerConfig(**json.loads((folder / "config.json").read_text()))
    prefix = load_file(folder / "prefix.safetensors")
    model = candidate_scorer(LongformerModel(config), config.vocab_size, chunk_reduction=case["chunk_reduce"])
    weights = load_file(GOLDEN / "weights" / f"{case['weights']}.safetensors")
    weights = {name.replace("longformer.", "encoder."): weight for name, weight in weights.items()}
    weights["special_tokens.weight"] = prefix["additional_word_embeddings"]
    model.load_state_dict(weights, strict=True)
    adapter = PrefixPropagationConfig(num_virtual_tokens=case["prefix_length"], layout=case["layout"])
    adapted = adapt_candidate_scorer(model, adapter)
    adapted.set_prefix(prefix["propagation"])
    return adapted.eval()


def make_batch(folder: Path, case: dict[str, Any]) -> dict[str, Tensor]:
    inputs = load_file(folder / "inputs.safetensors")
    part, supports = (inputs[name][0].numpy().astype(np.int32) for name in ("candidate_ids", "support_ids"))
    query, *candidates = np.split(part, inputs["prediction_indicies"][0].tolist())
    answer = int(inputs["correct_prediction_idx"][0].argmax())
    question = TokenizedQuestion("golden", query, tuple(candidates), (supports,), answer)
    encoded = split_into_chunks(question, case["chunk_total_length"] - case["prefix_length"])
    assert encoded.candidate_positions.tolist() == inputs["prediction_indicies"][0].tolist()
    return CandidateCollator(pad_token_id=1)([encoded])


def test_both_cases_are_here() -> None:
    assert [folder.name for folder in CASES] == ["wh_prop_chunks", "wh_prop_onechunk"]


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_golden(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    model, batch = build(folder, case), make_batch(folder, case)
    expected = load_file(folder / "outputs.safetensors")
    last_layer: list[Any] = []
    scorer = model.base_model.model
    scorer.encoder.encoder.layer[-1].register_forward_hook(lambda *call: last_layer.append(call[-1][0]))

    output = model(**batch, output_hidden_states=True)
    output.loss.backward()

    trained = {name: getattr(scorer, name).modules_to_save["default"] for name in ("special_tokens", "answer_score")}
    found: dict[str, Tensor] = {
        "logits": output.logits,
        "loss": output.loss.reshape(1),
        "grad.propagation": model.get_prefix().grad,
        "grad.additional_word_embeddings": trained["special_tokens"].weight.grad,
        "grad.answer_score.weight": trained["answer_score"].weight.grad,
    }
    for row, mask in enumerate(batch["attention_mask"].bool()):
        chunk = f".chunk{row}" if len(batch["input_ids"]) > 1 else ""
        found[f"hidden_states{chunk}"] = output.hidden_states[-1][row : row + 1, mask]
        found[f"prefix_states{chunk}"] = last_layer[0][row : row + 1, : case["prefix_length"]]
    assert found.keys() == expected.keys()
    errors = {}
    for name, value in expected.items():
        assert found[name].shape == value.shape
        scale = value.abs().max().item() if name.startswith("grad.") else 1.0
        errors[name] = float((found[name].detach() - value).abs().max()) / scale
    assert {name: error for name, error in errors.items() if error > TOLERANCE} == {}

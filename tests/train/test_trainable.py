"""What methods make of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peft import PeftModel

from prefixprop.models import candidate_scorer
from prefixprop.train import RunSettings
from prefixprop.train.plan import build_trainable

from tiny import tiny_model

LORA = RunSettings(task="hyperpartisan", method="lora")
USUAL = {
    "longformer": {"query", "value", "query_global", "value_global"},
    "roberta": {"query", "value"},
    "bert": {"query", "value"},
    "modernbert": {"Wqkv"},
}


def changed_layers(model: PeftModel) -> set[str]:
    names = (name.split(".lora_A")[0] for name, _ in model.named_parameters() if ".lora_A" in name)
    return {name.rpartition(".")[2] for name in names}


@pytest.mark.parametrize("family", USUAL)
def test_lora_changes_what_is_usual_for_the_family(family: str) -> None:
    assert changed_layers(build_trainable(tiny_model(family), LORA)) == USUAL[family]
    scorer = candidate_scorer(tiny_model(family, "FEATURE_EXTRACTION"), first_special_token=90)
    assert changed_layers(build_trainable(scorer, replace(LORA, task="wikihop"))) == USUAL[family]


def test_lora_changes_what_it_is_told() -> None:
    settings = RunSettings(task="hyperpartisan", method="lora", lora_targets=("key", "dense"))
    assert changed_layers(build_trainable(tiny_model("bert"), settings)) == {"key", "dense"}


def test_lora_targets_that_the_model_lacks() -> None:
    settings = RunSettings(task="hyperpartisan", method="lora", lora_targets=("query", "query_global", "Wqkv"))
    with pytest.raises(ValueError, match=r"this bert has no layers named query_global, Wqkv; it has .*key, query"):
        build_trainable(tiny_model("bert"), settings)
    with pytest.raises(ValueError, match=r"this distilbert has no layers named query, value; it has .*q_lin"):
        build_trainable(tiny_model("distilbert"), LORA)


def test_only_longformer_and_modernbert_have_backends() -> None:
    settings = RunSettings(task="hyperpartisan", method="head-only", attention_backend="sdpa")
    assert hasattr(build_trainable(tiny_model("longformer"), settings).longformer, "attention_patch")
    assert hasattr(build_trainable(tiny_model("modernbert"), settings).model, "attention_patch")
    with pytest.raises(ValueError, match=r"--attention-backend: sdpa is for Longformer .* this model is a roberta"):
        build_trainable(tiny_model("roberta"), settings)

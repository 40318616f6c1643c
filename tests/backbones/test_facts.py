"""What families say of themselves, held against their models."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from prefixprop import attention
from prefixprop.backbones import FAMILIES, FamilyFacts, family_in, family_of, find_backbone

from tiny import adapt, every_family, tiny_model


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_dropout_field_is_one_of_the_config(model_type: str) -> None:
    family, config = family_of(model_type), AutoConfig.for_model(model_type)
    fields = (*family.hidden_dropout_fields, *family.attention_dropout_fields)
    assert all(hasattr(config, name) for name in fields)


@every_family
def test_facts_are_those_of_the_model(family: str) -> None:
    model = tiny_model(family)
    facts = family_in(model)
    assert facts is family_of(family) is not FamilyFacts
    linears = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert linears.issuperset(facts.lora_targets)
    assert facts.first_position_of(model.config) == find_backbone(model).first_position
    if facts.has_fast_attention:
        attention.install(model)
    else:
        with pytest.raises(ValueError, match="is for Longformer and ModernBERT models"):
            attention.install(model)


def test_a_family_is_found_under_an_adapter_and_inside_other_models() -> None:
    model = adapt(tiny_model("modernbert"), "propagation")
    assert family_in(model) is family_in(nn.Sequential(model)) is family_of("modernbert")


def test_what_is_of_no_family_has_what_is_usual() -> None:
    assert family_of("deberta") is family_in(torch.nn.Linear(2, 2)) is FamilyFacts

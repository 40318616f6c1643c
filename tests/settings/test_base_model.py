"""The model a run starts from: its dropout, and how much it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prefixprop.backbones import find_backbone
from prefixprop.settings.base_model import load_base_model

from tiny import batch, every_family
from tiny_training import LABELS, tiny_settings


@every_family
def test_dropout_is_that_of_the_settings(family: str, tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, family, dropout=0.25, attention_dropout=0.4)
    model = load_base_model(settings).build(LABELS).train()
    rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    rates |= {getattr(module, "attention_dropout", 0.4) for module in model.modules()}  # ModernBERT's is no module
    assert rates <= {0.25, 0.4} and 0.25 in rates
    inputs = batch(model, [12])
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)
    still = load_base_model(tiny_settings(tmp_path, family, dropout=0.0)).build(LABELS).train()
    assert torch.equal(still(**inputs).logits, still(**inputs).logits)


def test_modernbert_drops_out_wherever_it_can(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, "modernbert", dropout=0.25, attention_dropout=0.4)
    config = load_base_model(settings).build(LABELS).config
    assert config.attention_dropout == 0.4
    assert (config.embedding_dropout, config.mlp_dropout, config.classifier_dropout) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("megatron-bert", {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.4}),
        ("distilbert", {"dropout": 0.1, "attention_dropout": 0.1}),  # names that nobody here knows of
    ],
)
def test_dropout_of_other_families(family: str, expected: dict[str, float], tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, family, dropout=0.25, attention_dropout=0.4)
    config = load_base_model(settings).build(LABELS).config
    assert {name: getattr(config, name) for name in expected} == expected


@every_family
def test_a_model_reads_as_far_as_its_positions_go(family: str, tmp_path: Path) -> None:
    base = load_base_model(tiny_settings(tmp_path, family))
    assert base.limit == find_backbone(base.build(LABELS)).max_tokens

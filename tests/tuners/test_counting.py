"""The counts of the paper's size, and that nothing is counted twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LongformerConfig, LongformerForSequenceClassification

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig, count_parameters

from tiny import every_family, tiny_model, trained_head


@pytest.mark.parametrize(
    ("config", "prefix", "lora", "percent"),
    [
        (PrefixPropagationConfig, 73_728, 0, "0.0498 %"),
        (PrefixTuningConfig, 147_456, 0, "0.0996 %"),
        (PrefixTuningConfig, 147_456, 589_824, "0.0996 %"),
    ],
)
def test_longformer_base(config: Any, prefix: int, lora: int, percent: str) -> None:
    with torch.device("meta"):
        model = LongformerForSequenceClassification(
            LongformerConfig(max_position_embeddings=4098, type_vocab_size=1, vocab_size=50265, num_labels=2)
        )
        adapted = get_peft_model(model, config(task_type="SEQ_CLS", lora=LoraConfig(r=8) if lora else None))
    count = count_parameters(adapted)
    assert (count.backbone, count.prefix, count.head, count.rest) == (148_068_864, prefix, 592_130, 0)
    assert count.lora == lora and count.trainable == prefix + lora + 592_130
    assert round(count.percent("prefix"), 4) == float(percent.split()[0])
    (line,) = [line for line in str(count).splitlines() if line.startswith("prefix")]
    assert line.split()[1:] == [f"{prefix:,}", *percent.split()]


@every_family
def test_parts_sum_to_the_model(family: str) -> None:
    model = tiny_model(family)
    total = sum(parameter.numel() for parameter in model.parameters())
    plain = count_parameters(model)
    assert plain.backbone + plain.head == total == plain.trainable
    assert plain.prefix == plain.rest == 0
    adapted = get_peft_model(model, PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=5))
    count = count_parameters(adapted)
    assert (count.backbone, count.head) == (plain.backbone, plain.head)
    assert count.prefix == 3 * 5 * 32 and count.rest == 0
    assert count.trainable == count.prefix + trained_head(adapted)
    assert trained_head(adapted) == count.head or family == "modernbert"


def test_networks_are_rest_and_lora_may_be_alone() -> None:
    config = PrefixPropagationConfig(num_virtual_tokens=5, reparameterize=True, reparameterize_hidden=16)
    count = count_parameters(get_peft_model(tiny_model(), config))
    assert count.prefix == 3 * 5 * 32
    assert count.rest == count.trainable == 5 * 32 + (32 * 16 + 16) + (16 * 96 + 96)
    count = count_parameters(get_peft_model(tiny_model(), LoraConfig(target_modules=["query"], r=2)))
    assert count.prefix == count.rest == 0 and count.lora == count.trainable == 3 * 2 * 2 * 32
    assert count.backbone == count_parameters(tiny_model()).backbone


def test_every_part_of_a_composed_adapter_is_counted_apart() -> None:
    """And other adapters are rest."""
    options: Any = {"task_type": "SEQ_CLS", "gate": True, "kernel": "exp", "alpha_mode": "head"}
    lora = LoraConfig(target_modules=["query"], r=2)
    model = get_peft_model(tiny_model(), PrefixPropagationConfig(num_virtual_tokens=5, lora=lora, **options))
    model.add_adapter("other", PrefixPropagationConfig(num_virtual_tokens=2, lora=LoraConfig(r=1)))
    count = count_parameters(model)
    sizes = (count.prefix, count.gates, count.alpha, count.lora)
    assert sizes == (3 * 5 * 32, 3, 3 * 4, 3 * 2 * 2 * 32)
    assert count.trainable == sum(sizes) + trained_head(model)
    assert count.rest == 3 * 2 * 32 + 4 * 3 * 2 * 32
    assert count.backbone == count_parameters(tiny_model()).backbone
    lines = {line.split()[0]: line.split()[1] for line in str(count).splitlines()}
    assert (lines["prefix"], lines["gates"], lines["lora"]) == ("480", "3", "384")

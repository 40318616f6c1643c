"""ModernBERT: how it is called, what does not work, and its head."""

from __future__ import annotations

import pytest
import torch

from prefixprop.train import RunSettings
from prefixprop.train.plan import build_trainable

from tiny import adapt, batch, both_methods, tiny_model


@both_methods
def test_positional_arguments(method: str) -> None:
    model = adapt(tiny_model("modernbert", "FEATURE_EXTRACTION"), method, "FEATURE_EXTRACTION")
    inputs = batch(model, [30, 17])
    found = model.base_model.model(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
    assert torch.equal(found, model(**inputs).last_hidden_state)


@both_methods
def test_attention_that_knows_windows_by_itself_is_refused(method: str) -> None:
    """Where it would have to run, that is: where somebody asks for weights."""
    model = adapt(tiny_model("modernbert"), method)
    inputs = batch(model, [12])
    expected = model(**inputs).logits
    model.config._attn_implementation = "flash_attention_2"
    assert torch.equal(model(**inputs).logits, expected)
    with pytest.raises(ValueError, match=r"ModernBERT.*='flash_attention_2', .* load .* with 'sdpa' or 'eager'"):
        model(**inputs, output_attentions=True)


def test_every_method_trains_the_same_head() -> None:
    trained = {}
    for method in ("head-only", "prefix-propagation", "prefix-tuning", "lora", "prefix-tuning+lora"):
        settings = RunSettings(task="hyperpartisan", method=method, num_virtual_tokens=4)
        model = build_trainable(tiny_model("modernbert"), settings)
        named = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
        trained[method] = sum(
            parameter.numel() for name, parameter in named if "head." in name or "classifier" in name
        )
    assert len(set(trained.values())) == 1, trained

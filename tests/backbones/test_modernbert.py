"""ModernBERT: what a window sees of a prefix, where prefixes stand, and what does not work."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prefixprop.train import RunSettings
from prefixprop.train.plan import build_trainable

from tiny import adapt, batch, both_methods, tiny_model


def states(model: Any, **inputs: Any) -> torch.Tensor:
    return model(**inputs).last_hidden_state.detach()


def windowed(method: str, **options: Any) -> Any:
    """Three layers of a window of two tokens to each side."""
    model = tiny_model("modernbert", "FEATURE_EXTRACTION", layer_types=["sliding_attention"] * 3, local_attention=4)
    adapted = adapt(model, method, "FEATURE_EXTRACTION", **options)
    adapted.set_prefix(0.5 * torch.randn(adapted.get_prefix().shape))
    return adapted


@both_methods
def test_every_row_of_a_window_sees_the_prefix(method: str) -> None:
    model = windowed(method)
    inputs = batch(model, [60])
    before = states(model, **inputs)
    model.set_prefix(2 * model.get_prefix().detach())
    assert ((states(model, **inputs) - before).abs().amax(dim=-1) > 1e-4).all()


def test_a_prefix_carries_what_is_beyond_the_window() -> None:
    """Propagation's rows see all tokens and are seen by all; prefix-tuning's keys see nothing."""
    for method, reaches in (("propagation", True), ("tuning", False)):
        model = windowed(method)
        inputs = batch(model, [60])
        other = dict(inputs, input_ids=inputs["input_ids"].clone())
        other["input_ids"][0, -1] = 4 if inputs["input_ids"][0, -1] != 4 else 5
        change = (states(model, **inputs) - states(model, **other)).abs().amax(dim=-1)[0]
        assert bool((change[:20] > 0).all()) is reaches and change[-1] > 0


@pytest.mark.parametrize(("layout", "same"), [("paper", True), ("reference", False)])
def test_prefix_rows_have_an_order_in_layout_reference_alone(layout: str, same: bool) -> None:
    model = windowed("propagation", layout=layout)
    inputs = batch(model, [12])
    before = states(model, **inputs)
    model.set_prefix(model.get_prefix().detach().roll(1, dims=1))
    assert torch.allclose(states(model, **inputs), before, atol=1e-5) is same


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

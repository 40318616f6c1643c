"""Several adapters, taking them off again, and what is trained."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict, inject_adapter_in_model
from peft.utils import set_peft_model_state_dict

from prefixprop import PrefixPropagationConfig

from tiny import (
    adapt,
    assert_same_bits,
    batch,
    both_methods,
    every_family,
    every_method,
    random_lora,
    tiny_model,
    trained_names,
)

PARTS = [("propagation", False), ("propagation", True), ("tuning", False), ("tuning", True), ("reading", False)]
prefix_with_and_without_lora = pytest.mark.parametrize(("method", "lora"), PARTS)


def pristine(module: Any) -> tuple:
    hooks = {
        name: (type(child), list(child._forward_hooks), list(child._forward_pre_hooks), "forward" in vars(child))
        for name, child in module.named_modules()
    }
    state = {name: (tuple(value.shape), value.dtype) for name, value in module.state_dict().items()}
    return hooks, state, trained_names(module)


@pytest.mark.parametrize("frozen", [False, True])
@prefix_with_and_without_lora
@every_family
def test_disabled_or_unloaded_it_is_the_base_model_to_the_bit(
    family: str, method: str, lora: bool, frozen: bool
) -> None:
    model = tiny_model(family).requires_grad_(not frozen)
    inputs = batch(model, [25, 14])
    expected = model(**inputs, output_hidden_states=True)
    before = pristine(model)  # with hooks of transformers, which record the states
    adapted = adapt(model, method, lora=random_lora() if lora else None)
    assert not torch.allclose(adapted(**inputs).logits, expected.logits)
    with adapted.disable_adapter():
        output = adapted(**inputs, output_hidden_states=True)
        assert_same_bits(output, expected)
        assert all(map(torch.equal, output.hidden_states, expected.hidden_states))
    base = adapted.unload()
    assert base is model and not hasattr(base, "peft_config")
    assert pristine(base) == before
    assert_same_bits(base(**inputs), expected)
    # and it can be adapted anew, with the other method too
    other = adapt(base, "tuning" if method == "propagation" else "propagation")
    assert not torch.allclose(other(**inputs).logits, expected.logits)


@both_methods
def test_merging_is_refused_with_the_reason(method: str) -> None:
    adapted = adapt(tiny_model(), method)
    for merge in (adapted.merge_and_unload, adapted.merge_adapter):
        with pytest.raises(ValueError, match=r"cannot be merged: it adds virtual tokens or keys.*unload\(\)"):
            merge()
    adapted(**batch(adapted, [9]))  # still whole


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@every_method
@every_family
def test_a_copy_is_independent(family: str, method: str, duplicate: Any) -> None:
    base = tiny_model(family)
    before = pristine(base)
    model = adapt(base, method, init="vocab")
    inputs = batch(model, [12])
    expected = model(**inputs)
    twin = duplicate(model)
    assert_same_bits(twin(**inputs), expected)
    twin.set_prefix(torch.ones_like(twin.get_prefix()))
    assert not torch.equal(twin(**inputs).logits, expected.logits)
    assert pristine(twin.unload()) == before
    assert_same_bits(model(**inputs), expected)


@pytest.mark.parametrize("lora", [False, True])
def test_injection_without_a_peft_model(lora: bool) -> None:
    """By peft's `inject_adapter_in_model`, and by `add_adapter` of transformers."""
    inputs = batch(tiny_model(), [12])
    configs = [PrefixPropagationConfig(num_virtual_tokens=4, lora=random_lora() if lora else None) for _ in range(2)]
    injected = inject_adapter_in_model(configs[0], tiny_model()).eval()
    state = get_peft_model_state_dict(injected)
    assert [value.shape for name, value in state.items() if "lora" not in name] == [(3, 4, 32)]
    torch.manual_seed(3)
    model = tiny_model()
    model.add_adapter(configs[1])
    set_peft_model_state_dict(model, state)
    assert_same_bits(model.eval()(**inputs), injected(**inputs))
    model.disable_adapters()
    assert_same_bits(model(**inputs), tiny_model()(**inputs))


@prefix_with_and_without_lora
@every_family
def test_prefix_lora_and_head_are_trained_and_nothing_else(family: str, method: str, lora: bool) -> None:
    model = adapt(tiny_model(family), method, lora=random_lora() if lora else None)
    trained = trained_names(model)
    parts = [{name for name in trained if part in name} for part in ("prefixes", ".lora_", "classifier.modules_to_")]
    assert set.union(*parts) == trained and [bool(part) for part in parts] == [True, lora, True]
    assert len(parts[0]) == 1
    inputs = batch(model, [10, 6])
    expected = model(**inputs, labels=torch.tensor([0, 2]))
    expected.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert gradients.keys() == trained
    assert all(any(gradients[name].abs().sum() > 0 for name in part) for part in parts if part)
    model.set_prefix(torch.zeros_like(model.get_prefix()))
    assert not torch.allclose(model(**inputs).logits, expected.logits)


@both_methods
def test_set_prefix_checks_what_it_gets_and_without_a_name_is_of_the_active_adapter(method: str) -> None:
    model = adapt(tiny_model(), method)
    good = torch.randn(model.get_prefix().shape)
    model.set_prefix(good, "default")
    for bad in (good[:2], good.long(), good[None], [1.0]):
        with pytest.raises(ValueError, match=r"float tensor of shape \[3, .*pass one of that shape"):
            model.set_prefix(bad)
    assert torch.equal(model.get_prefix(), good)
    with pytest.raises(ValueError, match="no adapter 'other'"):
        model.set_prefix(good, "other")
    model.add_adapter("longer", type(model.peft_config["default"])(num_virtual_tokens=9, kernel="exp", alpha=0.3))
    model.set_adapter("longer")
    assert model.get_prefix().shape[-2] == 9 and model.get_alpha() == 0.3
    model.set_prefix(torch.zeros_like(model.get_prefix()))
    assert not model.get_prefix("longer").any() and torch.equal(model.get_prefix("default"), good)
    with pytest.raises(ValueError, match="Only one prefix adapter"):
        model.base_model.set_adapter(["default", "longer"])

"""LoRA beside a prefix, as one adapter: what it equals, and that peft treats it as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor

from tiny import (
    FAMILIES,
    METHODS,
    adapt,
    assert_same_bits,
    batch,
    both_methods,
    every_family,
    random_lora,
    tiny_model,
    trained_names,
)

TARGETS = {"longformer": ["query", "value", "query_global", "value_global"], "modernbert": ["Wqkv"]}


def composed(family: str, method: str, lora: Any = None, **options: Any) -> Any:
    """A tiny model with both parts."""
    return adapt(tiny_model(family), method, lora=random_lora(**lora or {}), **options)


def lora_weights(model: Any) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if ".lora_" in name}


@torch.no_grad()
def states(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Logits, and the hidden states of real tokens, in one row."""
    output = model(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].bool()
    return torch.cat([output.logits.flatten(), *(state[real].flatten() for state in output.hidden_states)])


def are_equal(found: Tensor, expected: Tensor) -> bool:
    """To 1e-6 of its length, which is what float32 has."""
    return float((found - expected).norm() / expected.norm()) < 1e-6


@both_methods
@every_family
def test_with_alpha_at_zero_it_is_lora_alone(family: str, method: str) -> None:
    """Outside the softmax and weighed by zero, prefix keys give nothing; propagation's rows are there, and unread."""
    both = composed(family, method, kernel="exp", alpha=0.0)
    lora = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=TARGETS.get(family, ["query", "value"]))
    alone = get_peft_model(tiny_model(family), lora).eval()
    inputs = batch(both, [25, 14])
    without, weights = states(alone, inputs), lora_weights(both)
    assert weights.keys() == lora_weights(alone).keys()
    alone.load_state_dict(weights, strict=False)
    assert are_equal(states(both, inputs), states(alone, inputs))
    assert (states(alone, inputs) - without).abs().max() > 1e-2


@pytest.mark.parametrize(("family", "method"), list(zip(FAMILIES, [*METHODS] * 2, strict=True)))
def test_several_adapters_with_and_without_lora(family: str, method: str, tmp_path: Path) -> None:
    """Each is as it is alone, whichever was added, active or deleted before."""
    alone = {
        "plain": adapt(tiny_model(family), method, length=3, layout="reference"),
        "lora": composed(family, method, length=5),
        "other": composed(family, method, {"r": 3, "target_modules": ["dense", "Wo"]}, kernel="exp", alpha=1.0),
    }
    inputs = batch(alone["plain"], [19, 7])
    expected, untouched = {}, states(tiny_model(family), inputs)
    for name, model in alone.items():
        expected[name] = states(model, inputs)
        model.save_pretrained(tmp_path / name)
    for first in (names := list(alone)):
        model = PeftModel.from_pretrained(tiny_model(family), tmp_path / first, adapter_name=first)
        for other in names:
            if other != first:
                model.load_adapter(tmp_path / other, other)
                assert are_equal(states(model, inputs), expected[first])  # loading does not activate
        for name in [*names, *reversed(names)]:
            model.set_adapter(name)
            assert are_equal(states(model, inputs), expected[name])
            with model.disable_adapter():
                assert torch.equal(states(model, inputs), untouched)
        model.set_adapter("lora")
        with pytest.warns(UserWarning):
            model.delete_adapter("lora")
        (active,) = model.active_adapters
        assert are_equal(states(model, inputs), expected[active])
        assert not any(".lora_A.lora." in name for name, _ in model.named_parameters())
        model.set_adapter("other")
        assert are_equal(states(model, inputs), expected["other"])
        model.save_pretrained(tmp_path / "again" / first, selected_adapters=["other"])
        again = PeftModel.from_pretrained(tiny_model(family), tmp_path / "again" / first / "other")
        assert are_equal(states(again, inputs), expected["other"])


@both_methods
def test_a_new_adapter_waits_to_be_active(method: str) -> None:
    model = composed("roberta", method)
    before = trained_names(model)
    model.add_adapter("second", METHODS[method](task_type="SEQ_CLS", lora=LoraConfig(r=2)))
    assert trained_names(model) == before
    model.set_adapter("second")
    assert trained_names(model) == {name.replace(".default", ".second") for name in before}


@both_methods
@every_family
def test_merging_keeps_the_prefix_and_says_so(family: str, method: str, tmp_path: Path) -> None:
    model = composed(family, method, {"use_dora": True}, kernel="exp", alpha=0.5)
    model.add_adapter("second", METHODS[method](task_type="SEQ_CLS", num_virtual_tokens=2))
    inputs = batch(model, [25, 14])
    expected = model(**inputs).logits
    before = states(model, inputs)
    for change in (model.merge_adapter, model.unmerge_adapter):  # for a while
        change()
        torch.testing.assert_close(states(model, inputs), before, atol=1e-4, rtol=1e-4)
        assert lora_weights(model)
    with pytest.warns(UserWarning, match=r"merged into the weights, but the prefix stays.*unload\(\)") as told:
        merged = model.merge_and_unload()
    assert told[0].filename == __file__
    assert merged is model.get_base_model() and not lora_weights(merged)
    assert list(model.peft_config) == ["default"]  # the other was for the weights as they were
    for one in (model, merged):
        torch.testing.assert_close(one(**inputs).logits, expected, atol=1e-5, rtol=1e-5)

    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["lora"] is None
    weights = model.unload()
    assert not torch.allclose(weights(**inputs).logits, expected, atol=1e-3)
    again = PeftModel.from_pretrained(weights, tmp_path)
    torch.testing.assert_close(again(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="cannot be merged"):
        again.merge_and_unload()


def test_after_wrong_targets_the_model_can_be_adapted() -> None:
    model = tiny_model("bert")
    inputs = batch(model, [12])
    with pytest.raises(ValueError, match="No modules were targeted"):
        adapt(model, "propagation", lora=LoraConfig(target_modules=["quary"]))
    adapted = adapt(model, "propagation", lora=LoraConfig(target_modules=["query"], init_lora_weights=False))
    expected = adapted(**inputs)
    trained = trained_names(adapted)
    with pytest.raises(ValueError, match="No modules were targeted"):
        adapted.add_adapter("second", METHODS["propagation"](lora=LoraConfig(target_modules=["quary"])))
    assert_same_bits(adapted(**inputs), expected)
    assert trained_names(adapted) >= trained

"""Frozen weights in half precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from prefixprop.models.gpu import hold_frozen_in_bfloat16

from tiny import adapt, batch, tiny_model


def test_only_frozen_weights_are_converted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    exact = model[0].weight.clone()
    hold_frozen_in_bfloat16(model)
    assert {parameter.dtype for parameter in model[0].parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model[1].parameters()} == {torch.float32}
    assert torch.equal(model[0].weight, exact.to(torch.bfloat16))
    assert not model[0].weight.requires_grad and model[1].weight.requires_grad


@pytest.mark.parametrize("kernel", [None, "exp"])
@pytest.mark.parametrize("method", ["propagation", "tuning"])
@pytest.mark.parametrize("family", ["longformer", "roberta"])
def test_a_held_model_is_as_near_the_exact_one_as_autocast_is(family: str, method: str, kernel: str | None) -> None:
    exact = adapt(tiny_model(family), method, kernel=kernel, prefix_dropout=0.0)
    converted, held = copy.deepcopy(exact), copy.deepcopy(exact)
    hold_frozen_in_bfloat16(held)
    expected, usual, found = step(exact, False), step(converted, True), step(held, True)
    assert len(expected) == len(found) > 2  # logits, and the gradients of prefix and head
    for right, theirs, ours in zip(expected, usual, found, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - right).norm() <= 2 * (theirs - right).norm() + 0.01 * right.norm()


@pytest.mark.parametrize("method", ["propagation", "tuning"])
def test_a_model_that_only_predicts_is_held_whole(method: str) -> None:
    exact = adapt(tiny_model("longformer"), method).eval()
    inputs = batch(exact, [18, 11])
    expected = exact(**inputs).logits
    hold_frozen_in_bfloat16(exact.requires_grad_(False))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = exact(**inputs).logits.float()
    assert (found - expected).norm() <= 0.05 * expected.norm()


def test_the_input_of_lora_stays_in_half_precision() -> None:
    model = get_peft_model(tiny_model("longformer"), LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    hold_frozen_in_bfloat16(model)
    seen: list[torch.dtype] = []
    for name, module in model.named_modules():
        if name.endswith("lora_A.default") and "layer.0." not in name:  # the embeddings are in float32
            module.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    step(model, True)
    assert seen and set(seen) == {torch.bfloat16}


def step(model: Any, autocast: bool) -> list[Tensor]:
    inputs = batch(model, [18, 11])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(**inputs)
        loss = nn.functional.cross_entropy(output.logits.float(), torch.tensor([0, 1]))
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [output.logits.detach().float(), *gradients]

"""Reading: Eq. 1 with the prefix hidden from the text, against that equation written out densely."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import Tensor

from prefixprop import PrefixPropagationConfig
from prefixprop.backbones import FAMILIES

import oracle
import tiny
from tiny import RELATIVES, adapt, batch, every_family, for_all_rows, randomised, tiny_model

LENGTHS = [23, 11, 1]


def reader(model: Any, length: int = 3, **options: Any) -> Any:
    """The model with a random prefix that reads."""
    return randomised(adapt(model, "reading", length=length, **({"prefix_dropout": 0.0} | options)), 0.5)


def hidden_from_text(layer: int, front: int, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Attention in which the rows of the text do not see the first `front` keys."""
    visible = visible.clone()
    visible[:, front:, :front] = False
    return oracle.softmax_attention(q, k, v, visible)


def expected_logits(plain: Any, inputs: dict[str, Tensor], prefix: Tensor) -> tuple[Tensor, Any]:
    """Logits by Eq. 1 in float64, and the model whose head gave them."""
    model = copy.deepcopy(plain).double()
    inputs = for_all_rows(inputs) if model.config.model_type == "longformer" else inputs
    rows, _ = oracle.hidden_states(plain, inputs, propagation=prefix, split=hidden_from_text)
    encoder = model.base_model
    norm = getattr(encoder, "final_norm", getattr(encoder, "LayerNorm", None))
    rows = rows if norm is None else norm(rows)
    if getattr(encoder, "pooler", None) is not None:
        rows = encoder.pooler(rows)
    elif hasattr(model, "head"):  # ModernBERT's
        rows = model.head(rows[:, 0])
    return model.classifier(rows), model


def find_head(model: Any) -> Any:
    """The trained classifier, or the model's own."""
    head = model.classifier
    return head.modules_to_save[model.active_adapter] if hasattr(head, "modules_to_save") else head


def assert_follows_equation(model: Any, inputs: dict[str, Tensor], length: int, **options: Any) -> None:
    adapted = reader(model, length, **options).double()
    plain = copy.deepcopy(adapted).unload()  # the head is trained, so this is the original one
    trained = find_head(adapted)
    own = [adapted.get_prefix(), *([adapted.get_gates()] if options.get("gate") else [])]
    prefix, *gates = leaves = [each.detach().clone().requires_grad_() for each in own]

    output = adapted(**inputs).logits
    find_head(plain).load_state_dict(trained.state_dict())
    expected, of_oracle = expected_logits(plain, inputs, prefix * gates[0][:, None, None] if gates else prefix)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-6)  # ModernBERT's rotations are in float32

    direction = torch.randn_like(expected)
    (output * direction).sum().backward()
    wanted = [*leaves, *find_head(of_oracle).requires_grad_().parameters()]
    gradients = torch.autograd.grad((expected * direction).sum(), wanted)
    found = [*own, *trained.parameters()]
    for parameter, gradient in zip(found, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6 * float(gradient.abs().max() + 1), rtol=0)
    learns = {id(parameter) for parameter in found}
    for parameter in adapted.parameters():
        assert parameter.requires_grad == (parameter.grad is not None) == (id(parameter) in learns)


# --- the equation ---------------------------------------------------------------------------------------------------


OPTIONS = [(1, False, {}), (3, True, {}), (3, False, {"gate": True}), (11, False, {})]


@pytest.mark.parametrize(
    ("family", "length", "left", "options"),
    [
        *((family, *options) for family, options in product(tiny.FAMILIES, OPTIONS)),
        *((relative, 3, False, {}) for relative in RELATIVES),
    ],
)
def test_follows_the_equation(family: str, length: int, left: bool, options: dict[str, Any]) -> None:
    """With 11 virtual tokens in four heads, keys and values of the text are projected and not folded into queries."""
    model = tiny_model(family)
    assert_follows_equation(model, batch(model, LENGTHS, left=left), length, **options)


@every_family
def test_callers_positions_and_no_mask(family: str) -> None:
    inputs = {"input_ids": torch.randint(4, 97, (2, 12)), "position_ids": torch.randint(2, 100, (2, 12))}
    assert_follows_equation(tiny_model(family), inputs, 3)


@every_family
def test_a_tuple_has_what_the_output_has(family: str) -> None:
    model = tiny_model(family)
    inputs = batch(model, LENGTHS) | {"output_hidden_states": True}
    adapted = reader(model, 2)
    output, (logits, states) = adapted(**inputs), adapted(**inputs, return_dict=False)
    assert torch.equal(logits, output.logits) and all(map(torch.equal, states, output.hidden_states))


# --- the text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@every_family
def test_the_text_is_that_of_the_frozen_model(family: str, training: bool) -> None:
    backbone = FAMILIES[family]
    dropouts = (*backbone.hidden_dropout_fields, *backbone.attention_dropout_fields)
    model = tiny_model(family, **dict.fromkeys(dropouts, 0.3)).double()
    inputs = batch(model, [23, 23])
    expected = model(**inputs, output_hidden_states=True, output_attentions=True)
    adapted = reader(model).double().train(training)
    output = adapted(**inputs, output_hidden_states=True)
    for found, wanted in zip(output.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6 * float(wanted.abs().max()), rtol=0)
        assert not found.requires_grad
    weights = adapted(**inputs, output_attentions=True).attentions
    assert [layer.shape for layer in weights] == [layer.shape for layer in expected.attentions]
    # The virtual tokens and the head do have dropout, and every module is as it was.
    assert all(module.training == training for module in adapted.modules())
    assert torch.equal(adapted(**inputs).logits, adapted(**inputs).logits) != training


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        *(({"task_type": task}, "is for task_type='SEQ_CLS'") for task in tiny.HEADS if task != "SEQ_CLS"),
        ({"pooling": "cls"}, "needs pooling='prefix', because .* does not see the prefix; leave pooling out"),
        ({"layout": "reference"}, "needs layout='paper'"),
        ({"kernel": "exp"}, "does not work with a kernel"),
        ({"lora": LoraConfig()}, "does not work with LoRA"),
    ],
)
def test_what_cannot_be_read_only(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=rf"^PrefixPropagationConfig: read_only=True {problem}[^.]*\.$"):
        PrefixPropagationConfig(**{"task_type": "SEQ_CLS", "read_only": True} | options)
    assert PrefixPropagationConfig(read_only=True, pooling="prefix") == PrefixPropagationConfig(read_only=True)


def test_masks_of_more_than_padding() -> None:
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"needs an attention_mask of shape \[2, 6\], .* not \[2, 1, 6, 6\]\.$"):
        reader(tiny_model("roberta"))(input_ids=torch.randint(4, 97, (2, 6)), attention_mask=mask)

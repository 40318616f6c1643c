"""The prefix of an adapter: dropout, gates, initialisation and reparameterisation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor

from prefixprop.train import trained_alpha

from tiny import adapt, assert_same_bits, batch, both_methods, every_family, tiny_model, trained_names

GATES = torch.tensor([0.3, -1.2, 2.0])


@both_methods
@every_family
def test_prefix_dropout_differs_by_example_and_only_in_training(family: str, method: str) -> None:
    model = adapt(tiny_model(family), method, length=6, prefix_dropout=0.5)
    model.set_prefix(torch.randn(model.get_prefix().shape))
    twice = {name: value.expand(2, -1) for name, value in batch(model, [12]).items()}
    torch.testing.assert_close(*model(**twice).logits)
    assert not torch.allclose(*model.train()(**twice).logits, atol=1e-3)
    still = adapt(tiny_model(family), method, prefix_dropout=0.0).train()
    assert torch.equal(still(**twice).logits, still.eval()(**twice).logits)


# --- gates: one trained number per layer that scales the prefix's part of it ----------------------------------------


def gated(family: str, method: str, **options: Any) -> tuple[Any, Any]:
    """A model with gates, and one without whose prefix stands for the same: rows times the gate, or values alone."""
    adapted, plain = (adapt(tiny_model(family), method, gate=gate, **options) for gate in (True, False))
    assert torch.equal(adapted.get_gates(), torch.ones_like(GATES))
    with torch.no_grad():
        adapted.get_gates().copy_(GATES)
    prefix = adapted.get_prefix().detach().clone()
    scaled = prefix if method == "propagation" else prefix[:, 1]
    scaled *= GATES.view(-1, *[1] * (scaled.dim() - 1))
    plain.set_prefix(prefix)
    return adapted, plain


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel": "exp", "alpha": 0.5},
        {"kernel": "linear", "alpha_mode": "head"},
        {"layout": "reference"},
        {"reparameterize": True},
    ],
)
@both_methods
@every_family
def test_a_gate_scales_what_is_added_or_the_values(family: str, method: str, options: dict[str, Any]) -> None:
    """So that d/dg is the sum over P of P · d/d(gP)."""
    models = gated(family, method, **options)
    inputs, labels = batch(models[0], [25, 14]), torch.tensor([0, 2])
    outputs = [model(**inputs, labels=labels) for model in models]
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, atol=1e-5, rtol=1e-5)
    if options:
        return
    for output in outputs:
        output.loss.backward()
    product = (models[0].get_prefix() * models[1].get_prefix().grad).detach()
    expected = (product if method == "propagation" else product[:, 1]).flatten(1).sum(dim=1)
    assert expected.abs().min() > 1e-6
    torch.testing.assert_close(models[0].get_gates().grad, expected, atol=1e-6, rtol=1e-4)


def test_gates_are_logged_per_layer() -> None:
    values = trained_alpha(gated("longformer", "tuning", kernel="exp", alpha_mode="layer")[0])
    assert {name: value for name, value in values.items() if name.startswith("gate/")} == {
        f"gate/layer_{layer}": pytest.approx(gate) for layer, gate in enumerate(GATES.tolist(), start=1)
    }


# --- the start ------------------------------------------------------------------------------------------------------


def test_normal_initialisation_and_its_seed() -> None:
    prefixes = []
    for _ in range(2):
        model = tiny_model("roberta", hidden_size=64)
        torch.manual_seed(7)
        prefixes.append(adapt(model, "propagation", length=30).get_prefix())
    assert torch.equal(*prefixes)
    assert prefixes[0].std().item() == pytest.approx(0.02, rel=0.05)


def assert_among(rows: Tensor, known: Tensor, tolerance: float = 1e-5) -> None:
    """Every row is one of those that are known."""
    assert ((rows[:, None] - known[None]).abs().amax(dim=-1).amin(dim=1) <= tolerance).all()


@pytest.mark.parametrize("layout", ["paper", "reference"])
@every_family
def test_vocabulary_initialisation_of_propagation_is_real_tokens(family: str, layout: str) -> None:
    """At the start the model is the base model with j real tokens in front of layer 1."""
    model = tiny_model(family, "FEATURE_EXTRACTION")
    embedded = torch.cat([model.embeddings(input_ids=torch.full((1, 5), word))[0] for word in range(97)]).detach()
    adapted = adapt(model, "propagation", "FEATURE_EXTRACTION", length=5, init="vocab", layout=layout)
    prefix = adapted.get_prefix().detach()
    assert not prefix[1:].any()
    if layout == "paper":
        assert_among(prefix[0], embedded, 0.0)
    else:
        empty = adapted.base_model.prefix_layer().backbone.embed_empty_words(5).detach()
        assert_among(prefix[0] + empty, embedded)


@every_family
def test_vocabulary_initialisation_of_tuning_is_the_models_own_keys(family: str) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    adapted = adapt(model, "tuning", "FEATURE_EXTRACTION", length=5, init="vocab")
    prefix = adapted.get_prefix().detach()
    if family == "modernbert":
        key: Any = partial(torch.nn.functional.linear, weight=model.layers[0].attn.Wqkv.weight.chunk(3)[1])
    else:
        key = model.encoder.layer[0].attention.self.key
    known = torch.cat([key(model.embeddings(input_ids=torch.full((1, 5), word)))[0] for word in range(97)]).detach()
    assert_among(prefix[0, 0].transpose(0, 1).flatten(1), known)
    assert adapted.training is False and prefix[2].std() > 0


@both_methods
@every_family
def test_reparameterisation_trains_a_network_and_saves_the_prefix(family: str, method: str, tmp_path: Path) -> None:
    model = adapt(tiny_model(family), method, reparameterize=True, reparameterize_hidden=16)
    trained = trained_names(model)
    assert sum("network" in name for name in trained) == 5
    assert not any(name.endswith("prefix.default.weight") for name in trained)
    assert 0.01 < model.get_prefix().std().item() < 0.04
    inputs = batch(model, [11, 6])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    before = model.get_prefix().detach().clone()
    model(**inputs, labels=torch.tensor([0, 1])).loss.backward()
    optimizer.step()
    assert not torch.allclose(model.get_prefix(), before)

    model.save_pretrained(tmp_path)
    assert not any("network" in name for name in load_file(tmp_path / "adapter_model.safetensors"))
    again = PeftModel.from_pretrained(tiny_model(family), tmp_path)
    assert not any("network" in name for name, _ in again.named_parameters())
    assert_same_bits(again(**inputs), model(**inputs))

    # Training can go on from the saved prefix, with a new network.
    onwards = PeftModel.from_pretrained(tiny_model(family), tmp_path, is_trainable=True)
    torch.testing.assert_close(onwards.get_prefix(), model.get_prefix())
    assert any("network" in name for name, _ in onwards.named_parameters())
    value = torch.full_like(onwards.get_prefix(), 0.25)
    onwards.set_prefix(value)
    torch.testing.assert_close(onwards.get_prefix(), value)

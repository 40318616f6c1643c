"""Dropout, initialisation and reparameterisation of the prefix."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from tiny import adapt, assert_same_bits, batch, both_methods, every_family, tiny_model


@both_methods
@every_family
def test_prefix_dropout_differs_by_example_and_only_in_training(family: str, method: str) -> None:
    model = adapt(tiny_model(family), method, length=6, prefix_dropout=0.5)
    model.set_prefix(torch.randn(model.get_prefix().shape))
    inputs = batch(model, [12])
    twice = {name: value.expand(2, -1) for name, value in inputs.items()}
    logits = model(**twice).logits
    torch.testing.assert_close(logits[0], logits[1])
    model.train()
    logits = model(**twice).logits
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)
    # p = 0 is off
    still = adapt(tiny_model(family), method, prefix_dropout=0.0).train()
    assert torch.equal(still(**twice).logits, still.eval()(**twice).logits)


def test_prefix_dropout_keeps_the_expected_value() -> None:
    model = adapt(tiny_model(), "propagation", prefix_dropout=0.25).train()
    layer = model.base_model.prefix_layer()
    model.set_prefix(torch.ones_like(model.get_prefix()))
    drawn = layer.prefixes["default"].layer(1, 4000)
    assert drawn.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert drawn.mean().item() == pytest.approx(1.0, abs=0.01)
    assert (drawn == 0).float().mean(dim=0).max() < 0.35  # no position is dropped for every example


def nearest(rows: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Largest difference of each row to the known row nearest to it."""
    return (rows[:, None] - known[None]).abs().amax(dim=-1).amin(dim=1)


def test_normal_initialisation_and_its_seed() -> None:
    prefixes = []
    for _ in range(2):
        model = tiny_model("roberta", hidden_size=64)
        torch.manual_seed(7)
        prefixes.append(adapt(model, "propagation", length=30).get_prefix())
    assert torch.equal(*prefixes)
    assert prefixes[0].std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("layout", ["paper", "reference"])
@every_family
def test_vocabulary_initialisation_of_propagation_is_real_tokens(family: str, layout: str) -> None:
    """At the start the model is the base model with j real tokens in front of layer 1."""
    model = tiny_model(family, "FEATURE_EXTRACTION")
    embedded = {
        row.numpy().tobytes()
        for word in range(97)
        for row in model.embeddings(input_ids=torch.full((1, 5), word))[0].detach()
    }
    adapted = adapt(model, "propagation", "FEATURE_EXTRACTION", length=5, init="vocab", layout=layout)
    prefix = adapted.get_prefix().detach()
    assert torch.equal(prefix[1:], torch.zeros_like(prefix[1:]))
    if layout == "paper":
        assert all(row.numpy().tobytes() in embedded for row in prefix[0])
    else:
        rows = prefix[0] + adapted.base_model.prefix_layer().backbone.embed_empty_words(5).detach()
        known = torch.stack([torch.frombuffer(bytearray(row), dtype=torch.float32) for row in embedded])
        assert (nearest(rows, known) < 1e-5).all()


@every_family
def test_vocabulary_initialisation_of_tuning_is_the_models_own_keys(family: str) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    adapted = adapt(model, "tuning", "FEATURE_EXTRACTION", length=5, init="vocab")
    prefix = adapted.get_prefix().detach()
    if family == "modernbert":
        attention = model.layers[0].attn
        key = partial(torch.nn.functional.linear, weight=attention.Wqkv.weight.chunk(3)[1])
    else:
        key = model.encoder.layer[0].attention.self.key
    known = torch.cat([key(model.embeddings(input_ids=torch.full((1, 5), word)))[0] for word in range(97)]).detach()
    rows = prefix[0, 0].transpose(0, 1).flatten(1)
    assert (nearest(rows, known) < 1e-5).all()
    assert adapted.training is False and prefix[2].std() > 0


@both_methods
@every_family
def test_reparameterisation_trains_a_network_and_saves_the_prefix(family: str, method: str, tmp_path: Path) -> None:
    model = adapt(tiny_model(family), method, reparameterize=True, reparameterize_hidden=16)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
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
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert not any("network" in name for name in saved)
    again = PeftModel.from_pretrained(tiny_model(family), tmp_path)
    assert not any("network" in name for name, _ in again.named_parameters())
    assert_same_bits(again(**inputs), model(**inputs))

    # Training can go on from the saved prefix, with a new network.
    onwards = PeftModel.from_pretrained(tiny_model(family), tmp_path, is_trainable=True)
    torch.testing.assert_close(onwards.get_prefix(), model.get_prefix())
    assert any("network" in name for name, _ in onwards.named_parameters())
    onwards.set_prefix(torch.full_like(onwards.get_prefix(), 0.25))
    torch.testing.assert_close(onwards.get_prefix(), torch.full_like(onwards.get_prefix(), 0.25))

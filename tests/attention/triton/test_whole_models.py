"""Whole models on the Triton backend: installed and taken out, checkpointed, in 16 bits, under LoRA."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prefixprop import attention

from one_layer import assert_same_gradients, trained_gradients
from tiny import adapt, assert_same_bits, batch, tiny_model

pytest.importorskip("triton")

SMALL = {"num_hidden_layers": 2, "attention_window": [8, 4], "num_attention_heads": 1, "hidden_size": 16}


def small_model(**overrides: Any) -> Any:
    return tiny_model(**(SMALL | overrides))


def test_same_numbers_as_hugging_face_and_back_again() -> None:
    model = small_model()
    inputs = batch(model, [13, 6])
    expected, gradients = model(**inputs), trained_gradients(model, inputs)
    attention.install(model, backend="triton")
    found = model(**inputs)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert not torch.equal(found.logits, expected.logits)  # it is another computation
    assert_same_gradients(trained_gradients(model, inputs), gradients)
    attention.uninstall(model)
    assert_same_bits(model(**inputs), expected)


@pytest.mark.parametrize(("method", "frozen"), [(None, False), ("tuning", False), ("tuning", True)])
def test_without_global_tokens_their_projections_have_no_part(
    method: str | None, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Hugging Face's, these get no gradient then; and nothing comes from gradients that no kernel wrote."""
    make = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *given, **named: make(*given, **named).fill_(100))
    model = small_model().longformer
    tokens = torch.randint(5, 40, (2, 13))
    if method is not None:
        model = adapt(model, method, "FEATURE_EXTRACTION", prefix_dropout=0.0)
    if not frozen:
        model.requires_grad_(True)
    found = []
    for backend in ("sdpa", "triton"):
        attention.install(model, backend=backend)
        model.zero_grad()
        states = model(tokens)[0]
        (states * torch.arange(16.0)).sum().backward()
        found.append((states, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-5, rtol=1e-5)
    assert not any("_global" in name for name in found[1][1])
    assert_same_gradients(found[1][1], {name: of for name, of in found[0][1].items() if "_global" not in name})


def test_gradient_checkpointing_with_dropout() -> None:
    """The second forward pass of a checkpoint draws the masks of the first."""
    model = small_model(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    model.longformer.encoder.requires_grad_(False)
    attention.install(model, backend="triton")
    model.train()
    inputs = batch(model, [13, 6])
    plain = trained_gradients(model, inputs)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same_gradients(trained_gradients(model, inputs), plain)


def test_autocast() -> None:
    """In float16: Triton's interpreter multiplies bfloat16 matrices wrongly, so that one is checked on a GPU."""
    model = small_model()
    inputs = batch(model, [13, 6])
    exact, gradients = model(**inputs).logits, trained_gradients(model, inputs)
    attention.install(model, backend="triton")
    with torch.autocast("cpu", torch.float16):
        logits = model(**inputs).logits
        found = trained_gradients(model, inputs)
    assert logits.dtype == torch.float16
    torch.testing.assert_close(logits.float(), exact, atol=0.01, rtol=0.01)
    assert_same_gradients(found, gradients, 0.01)

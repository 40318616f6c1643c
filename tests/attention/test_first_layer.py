"""The first layer's backward pass for a prefix alone: same gradients, and all of them for who asks for more."""

from __future__ import annotations

from functools import partial
from unittest.mock import Mock

import pytest
import torch

from prefixprop import attention

from one_layer import assert_same_gradients, set_dropout, trained_gradients
from tiny import SMALL, adapt, batch, both_methods, for_all_rows, tiny_model

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("method", "lengths", "left", "further", "prefix", "training"),
    [
        ("propagation", [17, 6], True, 0, 9, False),
        ("propagation", [5, 11], False, 3, 2, True),
        ("tuning", [17, 6], True, 2, 4, True),
    ],
)
def test_same_gradients(
    method: str, lengths: list[int], left: bool, further: int, prefix: int, training: bool
) -> None:
    model = adapt(tiny_model(**SMALL | {"num_hidden_layers": 1, "attention_window": [8]}), method, length=prefix)
    attention.install(model, "triton")
    if training:
        set_dropout(model, 0.3).train()
    inputs = for_all_rows(batch(model, lengths, left=left), 1 + further)
    inputs["global_attention_mask"] *= inputs["attention_mask"]
    found = trained_gradients(model, inputs)
    model.get_base_model().longformer.encoder.register_forward_pre_hook(lambda *_: None)  # whose owner may want all
    assert_same_gradients(found, trained_gradients(model, inputs), 1e-6)


@pytest.mark.parametrize(
    ("part", "register"),
    [
        (None, ""),
        ("encoder", "register_forward_pre_hook"),
        ("encoder.layer.0", "register_forward_pre_hook"),
        ("encoder.layer.0", "register_full_backward_hook"),
    ],
)
@both_methods
def test_what_the_sequence_would_get_is_computed_for_hooks_alone(
    method: str, part: str | None, register: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefixprop.attention.triton import launch_attention

    gradients_of_keys = Mock(wraps=launch_attention._window_keys_backward)
    monkeypatch.setattr(launch_attention, "_window_keys_backward", gradients_of_keys)
    model = adapt(tiny_model(**SMALL), method)
    attention.install(model, "triton")
    if part is not None:
        getattr(model.get_base_model().longformer.get_submodule(part), register)(lambda *_: None)
    trained_gradients(model, for_all_rows(batch(model, [9, 5]), 0))  # somebody's own mask: all rows of all layers
    assert gradients_of_keys.call_count == (1 if part is None else 2)  # of two layers


@pytest.mark.parametrize("backend", ["sdpa", "triton"])
@both_methods
def test_embeddings_that_learn_get_their_gradient(method: str, backend: str) -> None:
    model = adapt(tiny_model(**SMALL), method, prefix_dropout=0.0)
    inputs = batch(model, [9, 5])
    words = model.get_base_model().get_input_embeddings()(inputs.pop("input_ids")).detach()
    found = []
    for change in (partial(attention.install, backend=backend), attention.uninstall):
        change(model)
        embedded = words.clone().requires_grad_()
        model(inputs_embeds=embedded, **inputs).logits.square().sum().backward()
        found.append(embedded.grad)
    scale = float(found[1].abs().max())
    torch.testing.assert_close(found[0] / scale, found[1] / scale, atol=2e-5, rtol=1e-4)

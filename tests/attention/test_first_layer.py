"""The first layer's backward pass for a prefix alone: same gradients, and all of them for who asks for more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prefixprop import attention
from prefixprop.attention import longformer as forwards
from prefixprop.attention.longformer import LongformerPatch, grad_rows

from one_layer import assert_same_gradients, trained_gradients
from tiny import SMALL, adapt, batch, both_methods, tiny_model

pytest.importorskip("triton")


def dropping(model: Any) -> Any:
    """The same with much dropout, training."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    for layer in model.base_model.model.longformer.encoder.layer:
        layer.attention.self.dropout = 0.3
    return model.train()


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
        dropping(model)
    inputs = batch(model, lengths, left=left)
    is_global = torch.zeros_like(inputs["input_ids"])
    is_global[:, : 1 + further] = 1
    inputs["global_attention_mask"] = is_global * inputs["attention_mask"]
    found = trained_gradients(model, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forwards, "grad_rows", lambda *_: None)
        expected = trained_gradients(model, inputs)
    assert_same_gradients(found, expected, 1e-6)


@both_methods
def test_what_the_sequence_would_get_is_not_computed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefixprop.attention.triton import launch_attention

    started = []
    for name in ("_window_keys_backward", "_local_rows", "_global_rows", "_row_deltas"):
        monkeypatch.setattr(launch_attention, name, counted(name, getattr(launch_attention, name), started))
    model = adapt(tiny_model(**SMALL), method)
    attention.install(model, "triton")
    inputs = batch(model, [9, 5])
    inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])  # somebody's own: all rows of all layers
    trained_gradients(model, inputs)
    assert started.count("_window_keys_backward") == 1 and started.count("_local_rows backward") == 1
    assert started.count("_row_deltas") == 1
    assert started.count("_global_rows backward") == (2 if method == "propagation" else 1)


def counted(name: str, start: Any, started: list[str]) -> Any:
    def wrapped(*given: Any, **options: Any) -> None:
        started.append(f"{name} backward" if options.get("backward") else name)
        start(*given, **options)

    return wrapped


@pytest.mark.parametrize("backend", ["sdpa", "triton"])
@both_methods
def test_embeddings_that_learn_get_their_gradient(method: str, backend: str) -> None:
    model = adapt(tiny_model(**SMALL), method, prefix_dropout=0.0)
    inputs = batch(model, [9, 5])
    words = model.get_base_model().get_input_embeddings()(inputs.pop("input_ids")).detach()
    found = []
    for backend_here in (backend, None):
        embedded = words.clone().requires_grad_()
        if backend_here is None:
            attention.uninstall(model)
        else:
            attention.install(model, backend_here)
        model(inputs_embeds=embedded, **inputs).logits.square().sum().backward()
        found.append(embedded.grad)
    scale = float(found[1].abs().max())
    torch.testing.assert_close(found[0] / scale, found[1] / scale, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("method", "rows"), [("propagation", 5), ("tuning", 0), (None, 0)])
def test_who_learns(method: str | None, rows: int) -> None:
    longformer, source = tiny_model().longformer, None
    if method is not None:
        longformer = adapt(tiny_model(), method, length=5).get_base_model().longformer
        source = LongformerPatch.of(longformer).source
    still, learns = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3, requires_grad=True)
    assert grad_rows(longformer, source, still) == rows
    assert grad_rows(longformer, source, learns) is None
    for part, register in (
        (longformer.encoder, "register_forward_pre_hook"),
        (longformer.encoder.layer[0], "register_forward_pre_hook"),
        (longformer.encoder.layer[0], "register_full_backward_hook"),
    ):
        hook = getattr(part, register)(lambda *_: None)
        assert grad_rows(longformer, source, still) is None
        hook.remove()
    assert grad_rows(longformer, source, still) == rows

"""A frozen layer in one piece does what its parts do one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prefixprop import attention

from tiny import adapt, batch, tiny_model


def outcome(model: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(7)
    model.zero_grad()
    output = model(**inputs, labels=torch.tensor([0, 2]))
    output.loss.backward()
    return output.logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("method", "training", "options"),
    [("propagation", False, {}), ("tuning", True, {}), ("propagation", False, {"kernel": "exp", "alpha": 0.7})],
)
def test_in_one_piece_and_in_parts(
    method: str, training: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefixprop.attention.gpu import self_attention

    model = adapt(tiny_model(), method, **options)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    for layer in model.base_model.model.longformer.encoder.layer:
        layer.attention.self.dropout = 0.3
    model.train(training)
    attention.install(model, "triton")
    inputs = batch(model, [13, 6])
    pieces = []
    whole = self_attention.frozen_layer
    monkeypatch.setattr(self_attention, "frozen_layer", lambda *given: pieces.append(1) or whole(*given))
    logits, gradients = outcome(model, inputs)
    assert len(pieces) == 3, "every layer went through in one piece"
    # Somebody who waits for a part to be called gets what it is called with.
    seen = []
    for layer in model.base_model.model.longformer.encoder.layer:
        layer.intermediate.register_forward_hook(lambda *_: seen.append(1))
    expected, expected_gradients = outcome(model, inputs)
    assert len(pieces) == 3 and len(seen) == 3
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-4)


def test_layers_that_are_trained_or_uneven_go_in_parts() -> None:
    from prefixprop.attention.gpu.frozen_layer import weights_of

    layer = tiny_model().requires_grad_(False).longformer.encoder.layer[0]
    assert weights_of(layer, torch.float32) is not None
    assert weights_of(layer, torch.float16) is None
    layer.output.dropout.p = 0.9
    assert weights_of(layer, torch.float32) is None
    layer.output.dropout.p = layer.attention.output.dropout.p
    layer.output.LayerNorm.bias.requires_grad_(True)
    assert weights_of(layer, torch.float32) is None

"""Models under `torch.compile`: the eager numbers, with graph breaks or without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from prefixprop import attention

from one_layer import assert_close
from tiny import adapt, batch, tiny_model

KERNEL = {"kernel": "poly", "alpha": 0.5, "alpha_mode": "query"}


@pytest.mark.parametrize(
    ("family", "method", "options"),
    [
        ("longformer", None, {}),
        ("longformer", "propagation", KERNEL),
        ("longformer", "tuning", {}),
        ("modernbert", "propagation", {}),
        ("roberta", "propagation", {"layout": "reference"}),
    ],
)
def test_a_compiled_model_computes_the_same(family: str, method: str | None, options: dict[str, Any]) -> None:
    torch.compiler.reset()
    layers = {} if family == "longformer" else {"num_hidden_layers": 2}
    model: Any = tiny_model(family, **layers)
    if family in ("longformer", "modernbert"):
        attention.install(model, backend="sdpa")
    if method is not None:
        model = adapt(model, method, prefix_dropout=0.0, **options)
    compiled = torch.compile(model, backend="aot_eager")
    for lengths in ([13, 6], [17, 5]):
        inputs = batch(model, lengths)
        assert_close(step(compiled, model, inputs), step(model, model, inputs))
    if method is not None:
        with model.disable_adapter():
            torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)


def step(run: Any, model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    logits = run(**inputs).logits
    logits.square().mean().backward()
    gradients = {name: own.grad for name, own in model.named_parameters() if own.grad is not None and own.grad.any()}
    assert gradients
    return {"logits": logits.detach()} | gradients

"""Gates: one trained number per layer that scales the prefix's part of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prefixprop.report import plot_alpha
from prefixprop.train import trained_alpha

from tiny import adapt, batch, both_methods, every_family, tiny_model

GATES = torch.tensor([0.3, -1.2, 2.0])
KERNELS: list[dict[str, Any]] = [{}, {"kernel": "exp", "alpha": 0.5}, {"kernel": "linear", "alpha_mode": "head"}]


def gated(model: Any, method: str, **options: Any) -> Any:
    adapted = adapt(model, method, gate=True, **options)
    assert torch.equal(adapted.get_gates(), torch.ones_like(GATES))
    with torch.no_grad():
        adapted.get_gates().copy_(GATES)
    return adapted


def scaled(prefix: Tensor, method: str, gates: Tensor) -> Tensor:
    """The prefix without gates that stands for the same: rows times the gate, or values alone."""
    result = prefix.detach().clone()
    if method == "propagation":
        return result * gates.view(-1, 1, 1)
    result[:, 1] *= gates.view(-1, 1, 1, 1)
    return result


@pytest.mark.parametrize("options", [*KERNELS, {"layout": "reference"}, {"reparameterize": True}])
@both_methods
@every_family
def test_it_scales_what_is_added_or_the_values(family: str, method: str, options: dict[str, Any]) -> None:
    model = gated(tiny_model(family), method, **options)
    plain = adapt(tiny_model(family), method, **options)
    plain.set_prefix(scaled(model.get_prefix(), method, GATES))
    inputs = batch(model, [25, 14])
    torch.testing.assert_close(model(**inputs).logits, plain(**inputs).logits, atol=1e-5, rtol=1e-5)


@both_methods
def test_gradients_are_those_of_the_scaled_prefix(method: str) -> None:
    """d/dg is the sum over P of P · d/d(gP)."""
    model, plain = gated(tiny_model(), method), adapt(tiny_model(), method)
    plain.set_prefix(scaled(model.get_prefix(), method, GATES))
    inputs, labels = batch(model, [13, 6]), torch.tensor([0, 2])
    for one in (model, plain):
        one(**inputs, labels=labels).loss.backward()
    product = (model.get_prefix() * plain.get_prefix().grad).detach()
    expected = (product if method == "propagation" else product[:, 1]).flatten(1).sum(dim=1)
    assert expected.abs().min() > 1e-6
    torch.testing.assert_close(model.get_gates().grad, expected, atol=1e-6, rtol=1e-4)


def test_gates_are_logged_and_drawn_per_layer(tmp_path: Path) -> None:
    model = gated(tiny_model(), "tuning", kernel="exp", alpha_mode="layer")
    values = trained_alpha(model)
    assert {name: value for name, value in values.items() if name.startswith("gate/")} == {
        f"gate/layer_{layer}": pytest.approx(gate) for layer, gate in enumerate(GATES.tolist(), start=1)
    }
    figure = plot_alpha([{"step": 1, **values}, {"step": 2, **values}], tmp_path / "gates.png", of="gate")
    lines = [axis.lines[0].get_ydata().tolist() for axis in figure.axes if axis.get_visible()]
    assert lines == [pytest.approx([gate, gate]) for gate in GATES.tolist()]
    with pytest.raises(ValueError, match="holds no gate"):
        plot_alpha([{"step": 1, "alpha/layer_1": 0.1}], of="gate")

"""A frozen layer in one piece does what its parts do one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from prefixprop import attention
from prefixprop.tuners import kernel as kernel_module

from one_layer import assert_same_gradients, outcome, set_dropout
from tiny import adapt, batch, for_all_rows, tiny_model

pytest.importorskip("triton")
from prefixprop.attention.triton import launch_attention
from prefixprop.attention.triton.prefix_part import fits

from known_masks import is_kept, recorded_seeds

SMALLER = {"num_attention_heads": 1, "hidden_size": 16}


def one_layer(training: bool, **overrides: Any) -> Any:
    return set_dropout(tiny_model(num_hidden_layers=1, attention_window=[8], **overrides).train(training), 0.3)


def assert_same_as_in_parts(model: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the one layer is the operation of this name, with what its parts give one by one."""
    from prefixprop.attention.triton import longformer

    attention.install(model, "triton")
    inputs = for_all_rows(batch(model, [13, 6]))
    pieces = []
    step, run = getattr(longformer, name), longformer.run
    monkeypatch.setattr(longformer, "run", lambda *given: pieces.append(given[0]) or run(*given))

    def is_whole(made: Any) -> bool:
        return isinstance(made, step) and (name != "Block" or made.leave is not None)

    found = outcome(model, inputs)
    assert is_whole(pieces[-1])
    pieces.clear()
    # Somebody who waits for a part to be called gets what it is called with.
    seen = []
    (layer,) = model.base_model.model.longformer.encoder.layer
    for part in (layer.attention.self, layer.intermediate):
        part.register_forward_hook(lambda *_: seen.append(1))
    expected = outcome(model, inputs)
    assert not any(map(is_whole, pieces)) and len(seen) == 2
    torch.testing.assert_close(found.pop("logits"), expected.pop("logits"), atol=1e-5, rtol=1e-5)
    assert_same_gradients(found, expected)


@pytest.mark.parametrize(("method", "training"), [("propagation", False), ("tuning", True)])
def test_in_one_piece_and_in_parts(method: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapt(one_layer(training, num_attention_heads=2, hidden_size=16), method).train(training)
    assert_same_as_in_parts(model, "Block", monkeypatch)


@pytest.mark.parametrize(
    ("kernel", "mode", "length", "options"),
    [
        ("exp", "fixed", 3, {}),
        ("rbf", "head", 3, {"kernel_length_scale": 1.5}),
        ("poly", "query", 3, {"kernel_degree": 64, "kernel_offset": 4.0}),
        ("linear", "head", 19, {}),
    ],
)
def test_kernels_and_alpha(
    kernel: str, mode: str, length: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eq. 3 within the layer, against plain PyTorch with the same dropout mask."""
    model = adapt(
        one_layer(True, num_attention_heads=2, hidden_size=16), "propagation", length=length,
        kernel=kernel, alpha=0.7, alpha_mode=mode, prefix_dropout=0.0, **options,
    ).train()  # fmt: skip
    if mode != "fixed":
        torch.nn.init.normal_(model.get_alpha())
    drawn = recorded_seeds(monkeypatch, launch_attention)

    def dropped(weights: Tensor, dropout: float) -> Tensor:
        """Of weights [batch, heads, rows, virtual tokens]."""
        rows, columns = drawn[-1][0].view(weights.shape[:3]), drawn[-1][1].view(len(weights), -1)[:, :length]
        return weights * is_kept(rows[..., None], columns[:, None, None], dropout)

    monkeypatch.setattr(kernel_module, "F", SimpleNamespace(dropout=dropped))
    assert_same_as_in_parts(model, "Block", monkeypatch)
    assert len(drawn) == 2


def test_prefixes_that_a_program_cannot_hold() -> None:
    half, single = torch.empty(0, dtype=torch.bfloat16), torch.empty(0)
    assert fits(8, 64, half) and fits(128, 64, half) and fits(64, 64, single)
    assert not fits(129, 64, half) and not fits(128, 64, single) and not fits(0, 64, half)


def test_a_kernel_over_trained_keys_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapt(one_layer(False, **SMALLER), "tuning", kernel="exp", alpha_mode="layer")
    assert_same_as_in_parts(model, "Leave", monkeypatch)


def test_layers_that_are_trained_or_uneven_go_in_parts() -> None:
    from prefixprop.attention.triton.block import plan_for
    from prefixprop.attention.triton.longformer import plan_of

    layer, plans = tiny_model().requires_grad_(False).longformer.encoder.layer[0], {}

    def fused(dtype: torch.dtype = torch.float32) -> tuple[bool, bool]:
        enter, leave = plan_for(plans, layer, dtype, plan_of)
        return enter is not None, leave is not None

    assert fused() == (True, True)
    assert fused(torch.float16) == (False, False)
    layer.attention.self.key_global.weight.requires_grad_(True)
    assert fused() == (False, True)
    layer.output.dropout.p = 0.9
    assert fused() == (False, False)
    layer.output.dropout.p = layer.attention.output.dropout.p
    assert fused() == (False, True)
    layer.output.LayerNorm.bias.requires_grad_(True)
    assert fused() == (False, False)

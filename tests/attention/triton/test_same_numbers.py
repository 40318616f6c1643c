"""The Triton kernels, in Triton's interpreter, against the plain PyTorch backend in float64: output and gradients.

That backend is itself tested against Hugging Face's attention.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prefixprop.attention import sliding_window

from one_layer import Case, assert_close, cases, layer_of, results

pytest.importorskip("triton")
from prefixprop.attention.triton import longformer as triton_backend

FEW = Case(21, 8, 2, 16, [21, 13], False, ["question", "none"], prefix=5, outside=0, seed=1)


def kernel_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Eq. 3 with the kernel exp."""
    return 0.3 * (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


@settings(max_examples=8)  # the interpreter is slow
@given(case=st.one_of(cases(), cases(prefix=20)))
def test_any_length_window_padding_global_pattern_and_prefix_keys(case: Case) -> None:
    """Eq. 2."""
    layer = layer_of(case)
    found = results(layer, triton_backend)
    assert_close(found, results(layer, dtype=torch.float64))
    if case.prefix and any(case.kept):
        assert found["prefix keys"].any() and found["prefix values"].any()


@settings(max_examples=3)
@given(case=cases(outside=5))
def test_rows_outside_the_softmax(case: Case) -> None:
    """Rows that are keys to nobody (Eq. 3), without the part that stands for them and with it."""
    layer = layer_of(case._replace(kept=[max(count, 1) for count in case.kept]))  # who sees nobody has no attention
    for part in (None, kernel_attention):
        assert_close(results(layer, triton_backend, part), results(layer, part=part, dtype=torch.float64))


def test_prefix_keys_outside_the_softmax() -> None:
    """Eq. 3 of prefix-tuning."""
    layer = layer_of(FEW)
    exact = results(layer, part=kernel_attention, dtype=torch.float64)
    assert_close(results(layer, triton_backend, kernel_attention), exact)
    inside = results(layer, triton_backend)
    assert not torch.allclose(inside["output"], exact["output"].float(), atol=1e-2)


def test_rows_that_see_nobody_stay_finite() -> None:
    layer = layer_of(Case(9, 4, 1, 16, [0, 9], False, ["none", "first"], prefix=0, outside=3, seed=0))
    for tensor in results(layer, triton_backend, kernel_attention).values():
        assert torch.isfinite(tensor).all()


def test_half_precision_is_no_worse_than_the_plain_backend() -> None:
    layer = layer_of(FEW._replace(length=29, size=32, kept=[29, 13]))
    exact = results(layer, dtype=torch.float64)
    ours, plain = (results(layer, backend, dtype=torch.float16) for backend in (triton_backend, sliding_window))
    assert all(tensor.dtype == torch.float16 for tensor in ours.values())
    for name in ("output", "states", "prefix keys", "prefix values"):
        assert (ours[name] - exact[name]).norm() <= 1.2 * (plain[name] - exact[name]).norm()


def test_probabilities_that_are_asked_for_are_those_of_the_plain_backend() -> None:
    given_ = layer_of(FEW._replace(prefix=0))[:3]
    found, expected = (
        backend.longformer_self_attention(*given_, output_attentions=True)
        for backend in (triton_backend, sliding_window)
    )
    assert len(found) == len(expected) == 3
    assert all(map(torch.equal, found, expected))

"""ModernBERT on the fast attention, against Hugging Face's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prefixprop import attention
from prefixprop.attention.modernbert import rotary_attention

from one_layer import assert_same_states, states_and_gradients
from tiny import adapt, batch, both_methods, tiny_model


def modernbert(task: str = "FEATURE_EXTRACTION", **overrides: Any) -> Any:
    return tiny_model("modernbert", task, **overrides)


def by_kind(model: Any, mask: Tensor) -> dict[str, Tensor]:
    """The masks that Hugging Face would make of it. Given these, its attention runs."""
    length = mask.shape[1]
    seen = mask.bool()[:, None, None, :].expand(-1, 1, length, -1)
    place = torch.arange(length)
    near = (place[:, None] - place[None]).abs() <= model.config.local_attention // 2
    return {"full_attention": seen, "sliding_attention": seen & near}


@st.composite
def inputs_of_any_kind(draw: Any) -> dict[str, Any]:
    """Any length, window and padding: left, right, or anywhere."""
    lengths = draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    inputs = batch(modernbert(), lengths, draw(st.integers(0, 100)), draw(st.booleans()))
    if draw(st.booleans()):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 100)))
        holes = torch.rand(inputs["attention_mask"].shape, generator=generator) < 0.3
        inputs["attention_mask"] = inputs["attention_mask"].masked_fill(holes, 0)
        inputs["attention_mask"][:, max(lengths) // 2] = 1  # somebody is there
    return {"inputs": inputs, "window": draw(st.sampled_from([2, 4, 8, 16, 64, 200]))}


@settings(max_examples=30)
@given(case=inputs_of_any_kind())
def test_same_states_and_gradients_as_hugging_face(case: dict[str, Any]) -> None:
    model, inputs = modernbert(local_attention=case["window"]), case["inputs"]
    real = inputs["attention_mask"].bool()
    expected = states_and_gradients(model, inputs, real)
    attention.install(model)
    assert_same_states(states_and_gradients(model, inputs, real), expected)


KERNELS: list[dict[str, Any]] = [
    {},
    {"kernel": "exp"},
    {"kernel": "rbf", "alpha_mode": "head"},
    {"kernel": "poly", "alpha_mode": "query"},
    {"kernel": "linear", "alpha_mode": "layer"},
]


@both_methods
@settings(max_examples=20)
@given(
    case=inputs_of_any_kind(),
    length=st.integers(1, 9),
    layout=st.sampled_from(["paper", "reference"]),
    kernel=st.sampled_from(KERNELS),
)
def test_prefix_methods_have_the_numbers_of_hugging_faces_attention(
    method: str, case: dict[str, Any], length: int, layout: str, kernel: dict[str, Any]
) -> None:
    options = kernel | ({"alpha": 0.5} if kernel else {})
    model = modernbert(local_attention=case["window"])
    model = adapt(model, method, "FEATURE_EXTRACTION", length, layout=layout, prefix_dropout=0.0, **options)
    model.set_prefix(0.5 * torch.randn(model.get_prefix().shape))
    inputs = case["inputs"]
    real = inputs["attention_mask"].bool()
    masks = dict(inputs, attention_mask=by_kind(model, inputs["attention_mask"]))
    assert_same_states(states_and_gradients(model, inputs, real), states_and_gradients(model, masks, real))


class LargestTensor(TorchDispatchMode):
    """How many elements the largest tensor has that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(t.numel() for t in tree_leaves(output) if isinstance(t, Tensor))])
        return output


@pytest.mark.parametrize("method", [None, "propagation", "tuning"])
def test_nothing_has_length_times_length(method: str | None) -> None:
    model = modernbert(max_position_embeddings=700)
    if method is None:
        attention.install(model)
    else:
        model = adapt(model, method, "FEATURE_EXTRACTION", kernel="exp", alpha=0.1)
    with LargestTensor() as largest:
        model(**batch(model, [700])).last_hidden_state.sum().backward()
    assert 0 < largest.elements < 700 * 700


@pytest.mark.parametrize("reach", [None, 4])
def test_dropout_acts_on_the_probabilities(reach: int | None) -> None:
    """Kept probabilities grow by 1 / (1 - p), so the mean over masks is the output without dropout."""
    projected, angles = torch.randn(1, 40, 96), torch.randn(2, 1, 40, 8)

    def attend(count: int, dropout: float) -> Tensor:
        pattern = attention.AttentionPattern.with_rows_in_front(torch.zeros(count, 40, dtype=torch.bool), 3)
        return rotary_attention(projected.expand(count, -1, -1), angles, 4, reach, pattern, dropout=dropout)

    drawn, (expected,) = attend(600, 0.2), attend(1, 0.0)
    assert (drawn.std(dim=0) > 0).all()
    error = (drawn.mean(dim=0) - expected).abs() / (drawn.std(dim=0) / 600**0.5)
    assert error.mean() < 1.1 and error.max() < 6


def test_half_precision_is_no_worse_than_hugging_face() -> None:
    model = modernbert(local_attention=16, max_position_embeddings=300)
    inputs = batch(model, [200, 120])
    real = inputs["attention_mask"].bool()
    exact = copy.deepcopy(model).double()(**inputs).last_hidden_state[real]
    model = model.to(torch.bfloat16)
    theirs = model(**inputs).last_hidden_state[real]
    attention.install(model)
    ours = model(**inputs).last_hidden_state[real]
    assert ours.dtype == torch.bfloat16
    assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm()

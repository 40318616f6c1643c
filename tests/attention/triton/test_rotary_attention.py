"""Attention with rotary positions on the Triton kernels, in their interpreter, against plain PyTorch in float64."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prefixprop import attention
from prefixprop.attention import AttentionPattern, modernbert
from prefixprop.attention.prefix import FusedPart, PrefixedKeys
from prefixprop.kernels import Exponential, Kernel, Linear, Polynomial, RadialBasis
from prefixprop.tuners.kernel import PrefixAttention

from one_layer import assert_close, assert_same_gradients, trained_gradients
from tiny import adapt, batch, tiny_model

pytest.importorskip("triton")
from prefixprop.attention.triton import rotary_attention as triton_backend


class Case(NamedTuple):
    """One layer: `front` rows that see all and are seen by all, or `prefix` keys."""

    length: int
    reach: int | None
    heads: int
    size: int
    real: list[list[bool]]  # tokens of each example
    front: int
    outside: bool
    prefix: int
    shared_angles: bool
    seed: int


@st.composite
def cases(draw: Any, full: bool = False) -> Case:
    length, examples = draw(st.integers(1, 45)), draw(st.sampled_from([1, 1, 2]))
    padding = draw(st.sampled_from(["none", "left", "right", "holes"]))
    count = draw(st.integers(1, length))
    real = {
        "none": [True] * length,
        "left": [place >= length - count for place in range(length)],
        "right": [place < count for place in range(length)],
        "holes": [place % count == 0 for place in range(length)],
    }[padding]
    front, prefix = draw(st.sampled_from([(0, 0), (3, 0), (20, 0), (0, 3), (0, 20)]))
    return Case(
        length=length,
        reach=None if full else draw(st.integers(1, 20)),
        heads=draw(st.integers(1, 3)),
        size=draw(st.sampled_from([32, 64, 8, 24])),
        real=[real, [True] * length][:examples],
        front=front,
        outside=False,
        prefix=prefix,
        shared_angles=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


def kernel_attention(layer: int, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Eq. 3 with the kernel exp, as one's own."""
    return 0.3 * (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


def results(
    case: Case, backend: Any, dtype: torch.dtype = torch.float32, part: Any = None, fused: FusedPart | None = None
) -> dict[str, Tensor]:
    """Attention's rows and the gradients of all that they depend on, by name.

    Rows of padding are nobody's, and neither are those of a document that is nothing else.
    """
    generator = torch.Generator().manual_seed(case.seed)
    masked = F.pad(~torch.tensor(case.real), (case.front, 0))
    unpadded = all(map(all, case.real))
    pattern = AttentionPattern.with_rows_in_front(masked, case.front, case.front if case.outside else 0, unpadded)
    examples, length = masked.shape
    projected = torch.randn(examples, length, 3 * case.heads * case.size, generator=generator)
    angles = torch.randn(1 if case.shared_angles else examples, length, case.size // 2, generator=generator)
    angles = torch.cat([angles, angles], dim=-1)
    prefix = torch.randn(2, 1, case.heads, case.prefix, case.size, generator=generator)
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (projected, *prefix)]
    rows = backend.rotary_attention(
        leaves[0],
        (angles.cos().to(dtype), angles.sin().to(dtype)),
        case.heads,
        case.reach,
        pattern,
        PrefixedKeys(*leaves[1:]) if case.prefix else None,
        part if part is None else partial(part, 0),
        fused,
    )
    nobodys = masked | ~torch.tensor(case.real).any(dim=1, keepdim=True)
    rows = rows.masked_fill(nobodys[..., None], 0.0)
    direction = torch.randn(rows.shape, generator=generator)
    names = ["projected", "prefix keys", "prefix values"]
    if isinstance(part, PrefixAttention) and part.mode != "fixed":
        leaves.append(part.weight)
        names.append("alpha")
    found = torch.autograd.grad((rows * direction.to(dtype)).sum(), leaves, materialize_grads=True)
    return {"rows": rows.detach()} | {
        name: tensor for name, tensor in zip(names, found, strict=True) if tensor.numel()
    }


@pytest.mark.parametrize("full", [False, True], ids=["windows", "all rows without flash attention"])
@settings(max_examples=6)
@given(data=st.data())
def test_same_numbers(full: bool, data: st.DataObject) -> None:
    case = data.draw(cases(full=full))
    assert_close(results(case, triton_backend), results(case, modernbert, torch.float64))


def packed_one_by_one(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, same_ends: Tensor, longest: int, same_longest: int
) -> Tensor:
    """What `varlen_attn` computes, which has no CPU; NaN wherever it would not write."""
    assert ends is same_ends and longest == same_longest and ends.dtype == torch.int32
    bounds = ends.tolist()
    assert max(end - start for start, end in itertools.pairwise(bounds)) <= longest
    documents = [
        F.scaled_dot_product_attention(*(rows[start:end].transpose(0, 1)[None] for rows in (query, key, value)))
        for start, end in itertools.pairwise(bounds)
    ]
    written = torch.cat([rows[0].transpose(0, 1) for rows in documents])
    return torch.cat([written, written.new_full((len(query) - len(written), *query.shape[1:]), float("nan"))])


@pytest.fixture
def flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "has_flash_attention", lambda *_: True)
    monkeypatch.setattr(triton_backend, "has_dense_attention", lambda *_: False)
    monkeypatch.setattr(triton_backend, "varlen_attn", packed_one_by_one)


@pytest.fixture
def dense_attention(flash_attention: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes cuDNN on a GPU; documents that may be padded are an error."""
    monkeypatch.setattr(triton_backend, "has_dense_attention", lambda *_: True)
    monkeypatch.setattr(triton_backend, "varlen_attn", None)


@pytest.mark.usefixtures("flash_attention")
@settings(max_examples=12)
@given(case=cases(full=True))
def test_all_rows_of_packed_documents(case: Case) -> None:
    assert_close(results(case, triton_backend), results(case, modernbert, torch.float64))


SPLIT = Case(21, 4, 2, 16, [[True] * 21, [True] * 13 + [False] * 8], 5, True, 0, True, seed=1)


@pytest.mark.parametrize("reach", [4, None])
@pytest.mark.parametrize("prefix", [0, 5])
@pytest.mark.usefixtures("flash_attention")
def test_prefix_outside_the_softmax(reach: int | None, prefix: int) -> None:
    """Eq. 3, of prefix rows and of prefix keys."""
    case = SPLIT._replace(reach=reach, prefix=prefix, front=0 if prefix else 5, outside=not prefix)
    exact = results(case, modernbert, torch.float64, kernel_attention)
    assert_close(results(case, triton_backend, part=kernel_attention), exact)


@pytest.mark.parametrize(("front", "outside", "prefix"), [(0, False, 0), (5, False, 0), (5, True, 0), (0, False, 5)])
@pytest.mark.usefixtures("dense_attention")
def test_documents_of_one_length(front: int, outside: bool, prefix: int) -> None:
    case = SPLIT._replace(reach=None, front=front, outside=outside, prefix=prefix, real=[[True] * 21] * 2)
    part = kernel_attention if outside else None
    assert_close(results(case, triton_backend, part=part), results(case, modernbert, torch.float64, part))


@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.usefixtures("flash_attention")
def test_a_model_without_a_mask_knows_that_nothing_is_padding(
    has_mask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_backend, "has_dense_attention", lambda rows, tokens: tokens == 21)
    monkeypatch.setattr(triton_backend, "dense_attention", Mock(side_effect=triton_backend.dense_attention))
    model = adapt(tiny_model("modernbert", **SMALL), "propagation")
    inputs = {"input_ids": torch.randint(5, 50, (2, 21))}
    if has_mask:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    expected = trained_gradients(model, inputs)
    attention.install(model, backend="triton")
    assert_same_gradients(trained_gradients(model, inputs), expected)
    assert triton_backend.dense_attention.called != has_mask


LEFT = [[False] * 8 + [True] * 13, [False] * 21]  # the second document is all padding


@pytest.mark.parametrize(
    ("kernel", "mode", "reach", "real", "has_flash"),
    [
        (Exponential(), "fixed", 4, SPLIT.real, False),
        (RadialBasis(), "head", None, LEFT, True),
        (Polynomial(), "query", None, SPLIT.real, False),
        (Linear(), "query", 4, LEFT, False),
    ],
)
def test_kernels_that_the_backend_knows(
    kernel: Kernel, mode: str, reach: int | None, real: list, has_flash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eq. 3 without PyTorch's part."""
    monkeypatch.setattr(triton_backend, "has_flash_attention", lambda *_: has_flash)
    monkeypatch.setattr(triton_backend, "varlen_attn", packed_one_by_one)
    monkeypatch.setattr(triton_backend, "outside_softmax", None)  # it would ask for the keys
    case = SPLIT._replace(reach=reach, real=real)
    shape = {"fixed": (0,), "head": (1, 2), "query": (1, 2, 16)}[mode]
    part = PrefixAttention(kernel, mode, 0.7, 2, 16, torch.nn.Parameter(torch.rand(shape)))
    found = results(case, triton_backend, part=part, fused=part.fused(0))
    assert_close(found, results(case, modernbert, torch.float64, part.double()))


def test_half_precision_is_no_worse_than_the_plain_backend() -> None:
    case = SPLIT._replace(outside=False, size=32)
    exact = results(case, modernbert, torch.float64)
    ours, plain = (results(case, backend, torch.float16) for backend in (triton_backend, modernbert))
    for name in exact:
        assert ours[name].dtype == torch.float16
        assert (ours[name] - exact[name]).norm() <= 1.2 * (plain[name] - exact[name]).norm()


SMALL = {"num_hidden_layers": 2, "num_attention_heads": 1, "hidden_size": 16, "local_attention": 8}
SMALL |= {"layer_types": ["full_attention", "sliding_attention"]}
SPLIT_METHOD = {"kernel": "rbf", "alpha_mode": "layer", "alpha": 0.3}


@pytest.mark.parametrize(
    ("method", "options"), [(None, {}), ("propagation", {}), ("propagation", SPLIT_METHOD), ("tuning", {})]
)
@pytest.mark.usefixtures("flash_attention")
def test_whole_models(method: str | None, options: dict[str, Any]) -> None:
    """The same gradients as on the plain backend, also under autocast."""
    model = tiny_model("modernbert", **SMALL)
    if method is not None:
        model = adapt(model, method, length=3, prefix_dropout=0.0, **options)
    inputs = batch(model, [13, 6])
    attention.install(model, backend="sdpa")
    expected = trained_gradients(model, inputs)
    attention.install(model, backend="triton")
    assert_same_gradients(trained_gradients(model, inputs), expected)
    with torch.autocast("cpu", torch.float16):
        assert_same_gradients(trained_gradients(model, inputs), expected, 0.02)

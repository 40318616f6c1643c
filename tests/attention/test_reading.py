"""Attention of virtual tokens that only read, against a softmax that is written out."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from prefixprop import attention
from prefixprop.attention import AttentionPattern, backends
from prefixprop.attention.prefix import PrefixedKeys
from prefixprop.attention.reading import read_keys, read_states
from prefixprop.attention.sliding_window import split_heads
from prefixprop.backbones import find_backbone
from prefixprop.tuners.reader_bank import ReaderBank, new_reader
from prefixprop.tuners.reading import text_to_read

from one_layer import assert_close
from tiny import batch, every_family, tiny_model, with_triton


class Case(NamedTuple):
    """Readers of one length, and the text they read; it is projected only where heads * rows exceed its width."""

    readers: int
    length: int
    kept: tuple[int, ...]  # real tokens of each document
    heads: int = 2
    size: int = 8
    seed: int = 0


class Inputs(NamedTuple):
    states: Tensor  # [batch, tokens, heads * size]
    projections: tuple[nn.Linear, nn.Linear]  # of keys and of values
    pattern: AttentionPattern
    rows: tuple[Tensor, Tensor, Tensor]  # queries, own keys and own values
    direction: Tensor


CASES = [
    Case(1, 1, (9, 9)),
    Case(1, 3, (11, 4, 1)),
    Case(4, 2, (40, 33)),
    Case(5, 3, (19, 6, 0)),
    Case(40, 1, (70, 3)),
    Case(1, 20, (33, 17)),
]


def inputs_of(case: Case, dtype: torch.dtype = torch.float64) -> Inputs:
    torch.manual_seed(case.seed)
    tokens, width = max(1, *case.kept), case.heads * case.size
    is_masked = torch.arange(tokens)[None] >= torch.tensor(case.kept)[:, None]
    unpadded = tokens if not is_masked.any() else None
    pattern = AttentionPattern(is_masked, torch.zeros_like(is_masked), unpadded_rows=unpadded)
    projections = nn.Linear(width, width).to(dtype), nn.Linear(width, width).to(dtype)
    for parameter in (*projections[0].parameters(), *projections[1].parameters()):
        nn.init.normal_(parameter, std=0.3).requires_grad_(False)
    of_rows = (len(case.kept), case.heads, case.readers * case.length, case.size)
    query, key, value, direction = (torch.randn(of_rows, dtype=dtype) for _ in range(4))
    states = torch.randn(len(case.kept), tokens, width, dtype=dtype)
    return Inputs(states, projections, pattern, (query, key, value), direction)


def dense(
    inputs: Inputs, query: Tensor, own: PrefixedKeys, readers: int, step: int = 1, dropped: Tensor | float = 1.0
) -> Tensor:
    """softmax(q · cat(k', k) / √d) · cat(v', v), with what a row does not see masked; of every `step`-th row."""
    key, value = (split_heads(project(inputs.states), query.shape[1]) for project in inputs.projections)
    reader = torch.arange(query.shape[2]) // (query.shape[2] // readers)
    among = (reader[:, None] == reader).expand(len(query), 1, -1, -1)
    text = ~inputs.pattern.is_masked[:, None, None].expand(-1, -1, query.shape[2], -1)
    scores = query @ torch.cat([own.keys, key], dim=2).mT / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~torch.cat([among, text], dim=-1), -torch.inf).softmax(dim=-1)
    return (weights[:, :, ::step] * dropped) @ torch.cat([own.values, value], dim=2)


def by_states(inputs: Inputs, query: Tensor, own: PrefixedKeys, readers: int, dropout: float = 0.0) -> Tensor:
    return read_states(query, inputs.states, inputs.projections, inputs.pattern, own, readers, dropout)


def by_keys(inputs: Inputs, query: Tensor, own: PrefixedKeys, readers: int, dropout: float = 0.0) -> Tensor:
    key, value = (split_heads(project(inputs.states), query.shape[1]) for project in inputs.projections)
    return read_keys(query, key, value, inputs.pattern, own, readers, dropout)


def by_triton(
    inputs: Inputs, query: Tensor, own: PrefixedKeys, readers: int, dropout: float = 0.0, first_only: bool = False
) -> Tensor:
    from prefixprop.attention.triton.reading import attend_to_text

    qkv = torch.cat([rows.transpose(1, 2).flatten(2) for rows in (query, *own)], dim=-1)
    kv = torch.cat([project(inputs.states) for project in inputs.projections], dim=-1)
    found = attend_to_text(qkv, kv, inputs.pattern, query.shape[1], readers, first_only, dropout)
    return split_heads(found, query.shape[1])


def results(function: Any, inputs: Inputs, readers: int) -> dict[str, Tensor]:
    """The output, and the gradients of queries, own keys and own values."""
    query, *own = (rows.clone().requires_grad_() for rows in inputs.rows)
    output = function(inputs, query, PrefixedKeys(*own), readers)
    gradients = torch.autograd.grad((output * inputs.direction[:, :, : output.shape[2]]).sum(), [query, *own])
    return dict(zip(("output", "query", "key", "value"), (output.detach(), *gradients), strict=True))


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    key, value = inputs.projections
    return Inputs(
        inputs.states.to(dtype),
        (key.to(dtype), value.to(dtype)),
        inputs.pattern,
        tuple(rows.to(dtype) for rows in inputs.rows),  # type: ignore[arg-type]
        inputs.direction.to(dtype),
    )


both = pytest.mark.parametrize("function", [by_states, by_keys])
TYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    ("function", "dtype", "tolerance"),
    [
        *((function, *kind) for function in (by_states, by_keys) for kind in TYPES),
        pytest.param(by_triton, torch.float32, 1e-5, marks=with_triton),
    ],
)
def test_is_a_softmax_over_own_keys_and_the_text(
    function: Any, case: Case, dtype: torch.dtype, tolerance: float
) -> None:
    rounded = inputs_of(case, dtype)
    found = results(function, rounded, case.readers)
    assert all(tensor.dtype == dtype for tensor in found.values())
    assert_close(found, results(dense, cast(rounded, torch.float64), case.readers), tolerance)


@with_triton
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("case", [Case(3, 2, (19, 7)), *CASES[1:4]], ids=str)
def test_only_the_first_of_each_reader_asks(case: Case, dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout drops single probabilities of the text and of own keys, the same in backward."""
    from prefixprop.attention.triton import reading

    from known_masks import is_kept, recorded_seeds

    drawn = recorded_seeds(monkeypatch, reading)
    inputs, mask = inputs_of(case, torch.float32), 1.0
    for first_only in (True, False):
        found = results(partial(by_triton, dropout=dropout, first_only=first_only), inputs, case.readers)
        if dropout:
            rows, text, own = (seeds.view(len(case.kept), -1) for seeds in drawn.pop())
            columns = torch.cat([own, text], dim=1)[:, None, None]
            mask = is_kept(rows.unflatten(1, (case.heads, -1))[..., None], columns, dropout)
        written_out = partial(dense, step=case.length if first_only else 1, dropped=mask)
        assert_close(found, results(written_out, inputs, case.readers))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_few_rows_need_no_projected_text(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    inputs, projected = inputs_of(case), []
    monkeypatch.setattr(nn.Linear, "forward", lambda self, rows: projected.append(1) or F.linear(rows, self.weight))
    results(by_states, inputs, case.readers)
    assert len(projected) == (0 if case.readers * case.length <= case.size else 2)


@pytest.mark.parametrize("case", [Case(1, 1, (9, 4, 2)), Case(5, 3, (19, 6, 1))], ids=["few rows", "many rows"])
@pytest.mark.parametrize("function", [by_states, by_keys, pytest.param(by_triton, marks=with_triton)])
def test_a_batch_may_read_one_text(function: Any, case: Case) -> None:
    inputs = inputs_of(case, torch.float32 if function is by_triton else torch.float64)
    alike = inputs._replace(states=inputs.states[:1].expand(len(case.kept), -1, -1))
    once = inputs._replace(states=inputs.states[:1])
    tolerance = 1e-5 if function is by_triton else 1e-11
    assert_close(results(function, once, case.readers), results(dense, alike, case.readers), tolerance)


@given(
    st.builds(
        Case,
        readers=st.integers(1, 7),
        length=st.integers(1, 6),
        kept=st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple),
        heads=st.integers(1, 3),
        size=st.sampled_from([1, 3, 8, 20]),
        seed=st.integers(0, 1000),
    )
)
def test_any_shape(case: Case) -> None:
    inputs = inputs_of(case)
    expected = results(dense, inputs, case.readers)
    for function in (by_states, by_keys):
        assert_close(results(function, inputs, case.readers), expected, 1e-11)


@pytest.mark.parametrize("case", [Case(4, 2, (40, 33)), Case(5, 3, (19, 6, 0))], ids=["few rows", "many rows"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@both
def test_readers_do_not_see_each_other(function: Any, case: Case, dropout: float) -> None:
    """Whatever another reader is, NaN too, one's rows and gradients are the same to the bit."""
    inputs = inputs_of(case, torch.float32)
    of_second = slice(case.length, 2 * case.length)

    def of_the_others(rows: tuple[Tensor, ...]) -> list[Tensor]:
        torch.manual_seed(1)
        query, *own = (tensor.clone().requires_grad_() for tensor in rows)
        output = function(inputs, query, PrefixedKeys(*own), case.readers, dropout)
        found = [output, *torch.autograd.grad((output * inputs.direction).sum(), [query, *own])]
        return [torch.cat([t[:, :, : case.length], t[:, :, 2 * case.length :]], dim=2).detach() for t in found]

    before = of_the_others(inputs.rows)
    for other in (3.0, torch.nan):
        changed = tuple(tensor.clone() for tensor in inputs.rows)
        for tensor in changed:
            tensor[:, :, of_second] = other
        after = of_the_others(changed)
        assert all(one.equal(two) for one, two in zip(before, after, strict=True))
    assert all(tensor.isfinite().all() for tensor in before)


@pytest.mark.parametrize("readers", [2, 9], ids=["few rows", "many rows"])
@both
def test_dropout_is_right_on_average(function: Any, readers: int) -> None:
    case = Case(readers, 2, (7,) * 3000)
    inputs = inputs_of(case)
    one = inputs._replace(
        states=inputs.states[:1].expand(3000, -1, -1),
        rows=tuple(rows[:1].expand(3000, -1, -1, -1) for rows in inputs.rows),  # type: ignore[arg-type]
    )
    query, *own = one.rows
    expected = dense(one, query, PrefixedKeys(*own), readers)[0]
    drawn = function(one, query, PrefixedKeys(*own), readers, 0.3)
    assert not drawn[0].allclose(drawn[1])
    error = (drawn.mean(dim=0) - expected) / (drawn.std(dim=0) / 3000**0.5)
    assert error.abs().max() < 5


@with_triton
@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "trained"])
@every_family
def test_a_bank_computes_the_same(family: str, is_frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With frozen layers in one piece, and layer by layer where the encoder is trained too."""
    from prefixprop.attention.triton.reading import Reading

    model = tiny_model(family).requires_grad_(not is_frozen).eval()
    backbone = find_backbone(model)
    bank = ReaderBank(backbone, [new_reader(backbone, 3, 3, seed) for seed in range(4)])
    with torch.no_grad():
        bank.prefix.normal_(std=0.5)
    text = text_to_read(backbone, batch(model, [23, 11, 1]))

    def outcome(backend: str) -> list[Any]:
        monkeypatch.setattr(type(backbone), "backend", lambda self, device: backends.choose(backend, device))
        logits = bank(text)
        return [logits, *torch.autograd.grad(logits.square().sum(), [bank.prefix, *bank.heads])]

    called, forward = [], Reading.forward
    monkeypatch.setattr(Reading, "forward", lambda *given, **more: called.append(1) or forward(*given, **more))
    for found, expected in zip(outcome("triton"), outcome("sdpa"), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5 * float(expected.detach().abs().max() + 1), rtol=0)
    assert len(called) == len(backbone.layers)


@with_triton
def test_installed_backend_is_used() -> None:
    model = tiny_model("longformer")
    backbone, device = find_backbone(model), torch.device("cpu")
    assert backbone.backend(device).attend_to_text is None
    attention.install(model, "triton")
    assert backbone.backend(device).attend_to_text is not None

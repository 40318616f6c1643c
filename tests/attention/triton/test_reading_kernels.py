"""Readers with the Triton kernels against plain PyTorch: attention, whole banks and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from prefixprop import attention
from prefixprop.attention import AttentionPattern, backends
from prefixprop.attention.triton import reading
from prefixprop.attention.triton.tiles import levels
from prefixprop.backbones import find_backbone
from prefixprop.tuners.reader_bank import ReaderBank, new_reader
from prefixprop.tuners.reading import text_to_read

from tiny import batch, every_family, tiny_model

HEADS, SIZE = 2, 8
WIDTH = HEADS * SIZE
# Readers, virtual tokens of each, and the real tokens of each document.
CASES = [
    (1, 1, (9, 9)),
    (1, 3, (11, 4, 1)),
    (4, 2, (40, 33)),
    (5, 3, (19, 6, 0)),
    (40, 1, (70, 3)),
    (1, 20, (33, 17)),
    (9, 7, (21,)),
]


def inputs_of(readers: int, length: int, kept: tuple[int, ...]) -> tuple[Tensor, Tensor, AttentionPattern]:
    tokens = max(kept)
    is_masked = torch.arange(tokens)[None] >= torch.tensor(kept)[:, None]
    qkv = torch.randn(len(kept), readers * length, 3 * WIDTH)
    return qkv, torch.randn(len(kept), tokens, 2 * WIDTH), AttentionPattern(is_masked, torch.zeros_like(is_masked))


def written_out(
    qkv: Tensor, kv: Tensor, pattern: AttentionPattern, readers: int, first_only: bool, mask: Tensor | float = 1.0
) -> Tensor:
    """softmax(q · cat(k', k) / √d) · cat(v', v) in float64; `mask` [batch, heads, queries, keys] is dropout's."""
    of_rows = qkv.double().unflatten(2, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
    of_text = kv.double().unflatten(2, (2, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
    reader = torch.arange(qkv.shape[1]) // (qkv.shape[1] // readers)
    among = (reader[:, None] == reader).expand(len(qkv), HEADS, -1, -1)
    visible = ~pattern.is_masked[:, None, None].expand(-1, HEADS, qkv.shape[1], -1)
    scores = of_rows[0] @ torch.cat([of_rows[1], of_text[0]], dim=2).mT / SIZE**0.5
    scores = scores.masked_fill(~torch.cat([among, visible], dim=-1), -torch.inf)
    step = qkv.shape[1] // readers if first_only else 1
    weights = scores.softmax(dim=-1)[:, :, ::step] * mask
    return (weights @ torch.cat([of_rows[2], of_text[1]], dim=2)).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_is_a_softmax_over_own_keys_and_text(case: tuple[int, int, tuple[int, ...]], first_only: bool) -> None:
    qkv, kv, pattern = inputs_of(*case)
    qkv.requires_grad_()
    found = reading.attend_to_text(qkv, kv, pattern, HEADS, case[0], first_only)
    expected = written_out(qkv, kv, pattern, case[0], first_only)
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)
    direction = torch.randn_like(found)
    (gradient,) = torch.autograd.grad((found * direction).sum(), qkv)
    (exact,) = torch.autograd.grad((expected * direction).sum(), qkv)
    torch.testing.assert_close(gradient, exact, atol=5e-6, rtol=1e-5)


def test_a_batch_may_read_one_text() -> None:
    qkv, kv, pattern = inputs_of(2, 2, (11, 4, 1))
    found = reading.attend_to_text(qkv, kv[:1], pattern, HEADS, 2)
    expected = written_out(qkv, kv[:1].expand_as(kv), pattern, 2, False)
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("first_only", [False, True])
def test_drops_single_probabilities_of_text_and_own_keys(first_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    readers, length, dropout = 3, 2, 0.4
    qkv, kv, pattern = inputs_of(readers, length, (19, 7))
    qkv.requires_grad_()
    drawn: list[list[Tensor]] = []
    draw = reading.draw_dropout_seeds
    monkeypatch.setattr(reading, "draw_dropout_seeds", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    found = reading.attend_to_text(qkv, kv, pattern, HEADS, readers, first_only, dropout)
    ((rows, text, own),) = drawn
    keep_threshold, keep_scale = levels(dropout)
    columns = torch.cat([own.view(2, -1), text.view(2, -1)], dim=1)[:, None, None]
    mask = ((rows.view(2, HEADS, -1, 1) ^ columns) * -1640531535 >= keep_threshold) * keep_scale
    expected = written_out(qkv, kv, pattern, readers, first_only, mask)
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)
    direction = torch.randn_like(found)
    (gradient,) = torch.autograd.grad((found * direction).sum(), qkv)
    (exact,) = torch.autograd.grad((expected * direction).sum(), qkv)
    torch.testing.assert_close(gradient, exact, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "trained"])
@every_family
def test_a_bank_computes_the_same(family: str, is_frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With frozen layers in one piece, and layer by layer where the encoder is trained too."""
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

    called = []
    forward = reading.Reading.forward
    monkeypatch.setattr(
        reading.Reading, "forward", lambda *given, **more: called.append(1) or forward(*given, **more)
    )
    for found, expected in zip(outcome("triton"), outcome("sdpa"), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5 * float(expected.detach().abs().max() + 1), rtol=0)
    assert len(called) == len(backbone.layers)


def test_installed_backend_is_used() -> None:
    model = tiny_model("longformer")
    backbone, device = find_backbone(model), torch.device("cpu")
    assert backbone.backend(device).attend_to_text is None
    attention.install(model, "triton")
    assert backbone.backend(device).attend_to_text is not None

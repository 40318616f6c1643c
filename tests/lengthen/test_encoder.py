"""The losses against what PyTorch computes in one piece."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForMaskedLM

from prefixprop.lengthen import encoder
from prefixprop.lengthen.encoder import LinearCrossEntropy, Objective

from tiny import tiny_model


@pytest.mark.parametrize("at_once", [1, 60, 10_000])
def test_cross_entropy_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(encoder, "_LOGITS_AT_ONCE", at_once)
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.float32, requires_grad=True) for shape in ((7, 5), (11, 5), (11,))]
    targets = torch.randint(11, (7,))
    whole = F.cross_entropy(F.linear(*tensors), targets, reduction="sum")
    in_parts = LinearCrossEntropy.apply(*tensors, targets)
    torch.testing.assert_close(in_parts, whole)
    expected = torch.autograd.grad(3 * whole, tensors)
    torch.testing.assert_close(torch.autograd.grad(3 * in_parts, tensors), expected)


def longformer() -> torch.nn.Module:
    config = tiny_model("longformer", "FEATURE_EXTRACTION").config
    return AutoModelForMaskedLM.from_config(config).eval()


def test_the_loss_is_that_of_hugging_faces_head() -> None:
    torch.manual_seed(0)
    model = longformer()
    ids = torch.randint(4, 90, (2, 48))
    positions, targets = torch.tensor([3, 50, 60]), torch.tensor([7, 8, 9])
    losses = Objective(model)(ids, positions, targets)
    logits = model(ids).logits.flatten(0, 1)[positions]
    torch.testing.assert_close(losses.tokens, F.cross_entropy(logits, targets))
    assert losses.cls == 0 and losses.words == 0


def test_a_taught_cls_is_global_like_the_mean_of_its_pieces_and_tells_their_words_once() -> None:
    torch.manual_seed(0)
    model, teacher = longformer(), tiny_model("roberta", "FEATURE_EXTRACTION")
    ids = torch.randint(4, 90, (2, 48))
    pieces = torch.tensor([[0, 5, 5, 2], [0, 9, 5, 2], [0, 7, 8, 2], [0, 8, 8, 2]])  # two of each row
    losses = Objective(model, teacher)(ids, torch.tensor([3]), torch.tensor([7]), pieces)
    first = (torch.arange(48) == 0).long().expand(2, -1)
    student = model.longformer(ids, global_attention_mask=first).last_hidden_state[:, 0]
    mean = teacher(pieces).last_hidden_state[:, 0].view(2, 2, -1).mean(1)
    torch.testing.assert_close(losses.cls, (1 - F.cosine_similarity(student, mean)).mean())
    told = F.log_softmax(model(ids, global_attention_mask=first).logits[:, 0], dim=-1)
    expected = -(told[0, [0, 2, 5, 9]].mean() + told[1, [0, 2, 7, 8]].mean()) / 2
    torch.testing.assert_close(losses.words, expected)

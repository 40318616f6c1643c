"""Trained rows for new tokens over a frozen table."""

from __future__ import annotations

import torch
from torch import nn

from prefixprop.models.candidate_scoring import SpecialTokenEmbedding


def test_only_the_new_rows_are_trained() -> None:
    table = nn.Embedding(10, 6).requires_grad_(False)
    special = SpecialTokenEmbedding(10, 4, 6)
    special.start_like(table.weight)
    ids = torch.tensor([[3, 10, 13, 0], [12, 9, 10, 1]])
    embedded = special(ids, table)
    both = torch.cat([table.weight, special.weight])
    assert torch.equal(embedded, both[ids])
    embedded.sum().backward()
    assert special.weight.grad is not None and table.weight.grad is None
    assert special.weight.grad[:, 0].tolist() == [2, 0, 1, 1]


def test_ids_inside_the_table_are_overruled() -> None:
    """A model may have more rows than its tokenizer has tokens."""
    table, special = nn.Embedding(10, 6), SpecialTokenEmbedding(5, 4, 6)
    special.start_like(table.weight)
    embedded = special(torch.tensor([4, 5, 8, 9]), table)
    assert torch.equal(embedded, torch.stack([table.weight[4], *special.weight[[0, 3]], table.weight[9]]))
    embedded.sum().backward()
    assert table.weight.grad is not None and table.weight.grad[5:9].eq(0).all()


def test_rows_start_like_words() -> None:
    words = torch.randn(1000, 64) * 0.3 + 2
    special = SpecialTokenEmbedding(1000, 4, 64)
    special.start_like(words)
    assert abs(special.weight.mean().item() - 2) < 0.1 and 0.25 < special.weight.std().item() < 0.35

"""Embeddings for tokens that an encoder was not pretrained with."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SpecialTokenEmbedding(nn.Module):
    """A few trained rows, for consecutive token ids, over a table of word embeddings that may be frozen.

    The table stays as it is: it needs no rows for these ids, and only the few rows are trained and saved.
    """

    def __init__(self, first_id: int, count: int, size: int) -> None:
        super().__init__()
        self.first_id = first_id
        self.weight = nn.Parameter(torch.empty(count, size))

    @torch.no_grad()
    def start_like(self, words: Tensor) -> None:
        """Draw the rows from the normal distribution of the weights of `words`."""
        self.weight.normal_(mean=float(words.mean()), std=float(words.std()))

    def forward(self, input_ids: Tensor, table: Any) -> Tensor:
        """The embeddings of `input_ids`: own rows for the special tokens, those of `table` for all others."""
        row = input_ids - self.first_id
        is_special = (row >= 0) & (row < len(self.weight))
        words = table(input_ids.masked_fill(is_special, 0))
        own = F.embedding(row.clamp(0, len(self.weight) - 1), self.weight)
        return torch.where(is_special.unsqueeze(-1), own.to(words.dtype), words)

"""Documents of a batch under one another, padded to the longest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefixprop.tasks.encoding import TokenIds

if TYPE_CHECKING:
    from torch import Tensor

PADDING_SIDES = ("right", "left")


def pad_documents(rows: Sequence[TokenIds], pad_token_id: int, padding_side: str = "right") -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, [documents, longest]."""
    import torch

    length = max(len(row) for row in rows)
    input_ids = torch.full((len(rows), length), pad_token_id)
    attention_mask = torch.zeros(len(rows), length, dtype=torch.long)
    for place, row in enumerate(rows):
        start = 0 if padding_side == "right" else length - len(row)
        input_ids[place, start : start + len(row)] = torch.from_numpy(row)
        attention_mask[place, start : start + len(row)] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


@dataclass(frozen=True)
class DocumentCollator:
    """Batches of items with `input_ids`, as arrays, and `labels`.

    Hugging Face's collators go through Python lists, which at thousands of tokens takes longer than a GPU's step.
    """

    pad_token_id: int
    padding_side: str = "right"

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        import torch

        padded = pad_documents([item["input_ids"] for item in items], self.pad_token_id, self.padding_side)
        return padded | {"labels": torch.tensor([item["labels"] for item in items])}

"""LoRA around a linear layer where every document of a batch has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "lora_of_documents"  # a linear layer's attribute while it has one, which makes it


class DocumentLora(NamedTuple):
    """scale · up(down(rows)), with matrices for each document."""

    down: Tensor  # [documents, rank, width of the rows]
    up: Tensor  # [documents, width of the output, rank]
    scale: float

    @classmethod
    def of(cls, layer: Any, adapters: Sequence[str], owner: Tensor) -> DocumentLora:
        """`owner` [documents] says which adapter each has; one that the layer does not have adds nothing."""
        present = [name for name in adapters if name in layer.lora_A]
        rank = max(layer.r[name] for name in present)
        scale = layer.scaling[present[0]]
        down, up = layer.lora_A[present[0]].weight, layer.lora_B[present[0]].weight
        downs, ups = [], []
        for name in adapters:
            if name not in present:
                downs.append(down.new_zeros(rank, down.shape[1]))
                ups.append(up.new_zeros(up.shape[0], rank))
                continue
            missing, ratio = rank - layer.r[name], layer.scaling[name] / scale
            own_down, own_up = layer.lora_A[name].weight, layer.lora_B[name].weight
            downs.append(F.pad(own_down, (0, 0, 0, missing)) if missing else own_down)
            own_up = own_up if ratio == 1 else own_up * ratio
            ups.append(F.pad(own_up, (0, missing)) if missing else own_up)
        return cls(torch.stack(downs)[owner], torch.stack(ups)[owner], float(scale))

    def add_to(self, output: Tensor, rows: Tensor) -> Tensor:
        """`output` of the linear layer with each document's own part; both [documents, ..., width]."""
        flat = rows.to(self.down.dtype).reshape(len(rows), -1, rows.shape[-1])
        return output + (flat @ self.down.mT @ self.up.mT * self.scale).view_as(output).to(output.dtype)

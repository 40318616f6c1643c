"""LoRA around linear layers where every document of a batch has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "lora_of_documents"  # a linear layer's attribute while it has one, which makes it
STEP = 8  # ranks are padded to a multiple of this, which matrix units want


class DocumentLora(NamedTuple):
    """scale · up(down(rows)) around a linear layer, of all adapters of a batch."""

    matrices: list[tuple[Tensor, Tensor] | None]  # down [rank, width] and up [width, rank], if the layer has any
    scale: float
    owner: Tensor  # [documents]: which adapter each has

    @classmethod
    def of(cls, layer: Any, adapters: Sequence[str], owner: Tensor) -> DocumentLora:
        """An adapter that the layer does not have adds nothing."""
        downs, ups, scaling = layer.lora_A, layer.lora_B, layer.scaling
        scale: float | None = None
        matrices: list[tuple[Tensor, Tensor] | None] = []
        for name in adapters:
            if name not in downs:
                matrices.append(None)
                continue
            own, up = scaling[name], ups[name].weight
            scale = own if scale is None else scale
            matrices.append((downs[name].weight, up if own == scale else up * (own / scale)))
        return cls(matrices, float(scale or 0.0), owner)

    def add_to(self, output: Tensor, rows: Tensor) -> Tensor:
        """`output` of the linear layer with each document's own part; both [documents, ..., width]."""
        down, up = gather([self])
        flat = rows.to(down.dtype).reshape(len(rows), -1, rows.shape[-1])
        return output + (flat @ down[:, 0].mT @ up[0].mT * self.scale).view_as(output).to(output.dtype)


def gather(layers: Sequence[DocumentLora]) -> tuple[Tensor, Tensor]:
    """The documents' matrices for layers side by side, in a few operations, as a GPU waits for each to be started.

    Down [documents, layers, rank, width], and up [layers, documents, width, rank].
    """
    given = [both for layer in layers for both in layer.matrices if both is not None]
    rank = -(-max(len(down) for down, _ in given) // STEP) * STEP
    nothing = given[0][0].new_zeros(rank, given[0][0].shape[1]), given[0][1].new_zeros(len(given[0][1]), rank)
    padded = [[nothing if both is None else _padded(*both, rank) for both in layer.matrices] for layer in layers]
    down = torch.stack([down for adapter in zip(*padded, strict=True) for down, _ in adapter])
    up = torch.stack([up for layer in padded for _, up in layer])
    owner = layers[0].owner
    return down.unflatten(0, (-1, len(layers)))[owner], up.unflatten(0, (len(layers), -1)).index_select(1, owner)


def _padded(down: Tensor, up: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    missing = rank - len(down)
    return (F.pad(down, (0, 0, 0, missing)), F.pad(up, (0, missing))) if missing else (down, up)

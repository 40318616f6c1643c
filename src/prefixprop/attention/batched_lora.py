"""A batch in which each document has its own adapter: which document has which, and its LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

STEP = 8  # ranks are padded to a multiple of this, as cuBLAS's batched products need for tensor cores


class Owners:
    """Which adapter each document of a batch has.

    The tensors are made once, before the pass: copying a list to a GPU later would wait for all its pending work.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.adapters = list(dict.fromkeys(names))
        self.places = {name: [place for place, own in enumerate(names) if own == name] for name in self.adapters}
        owner = [self.adapters.index(name) for name in names]
        in_turn = [place for own in self.places.values() for place in own]
        back = sorted(range(len(names)), key=in_turn.__getitem__)
        pinned = device.type == "cuda"  # or the host would wait for the pending work here, too
        places = torch.tensor([owner, in_turn, back], pin_memory=pinned)
        self.owner, self.by_adapter, self.back = places.to(device, non_blocking=True)


class BatchedLora(NamedTuple):
    """scale · up(down(rows)) beside a linear layer, for all adapters of a batch."""

    downs: list[Tensor | None]  # [rank, width] of each adapter, if the layer has any of it
    ups: list[Tensor | None]  # [width, rank]
    rank: int  # the highest
    scale: float
    owner: Tensor  # [documents]: which adapter each has

    @classmethod
    def of(cls, layer: Any, adapters: Sequence[str], owner: Tensor) -> BatchedLora:
        """The LoRA of a peft layer; an adapter that the layer does not have adds nothing."""
        ranks, scales = layer.r, layer.scaling
        own = [name for name in adapters if name in ranks]
        in_a, in_b, scale = layer.lora_A._modules, layer.lora_B._modules, scales[own[0]]
        downs: dict[str, Tensor] = {name: in_a[name].weight for name in own}
        ups: dict[str, Tensor] = {
            name: in_b[name].weight if scales[name] == scale else in_b[name].weight * (scales[name] / scale)
            for name in own
        }
        rank = max(ranks[name] for name in own)
        return cls([*map(downs.get, adapters)], [*map(ups.get, adapters)], rank, float(scale), owner)

    def add_to(self, output: Tensor, rows: Tensor) -> Tensor:
        """`output` of the linear layer with each document's own part; both [documents, ..., width]."""
        down, up = gather([self])
        flat = rows.to(down.dtype).reshape(len(rows), -1, rows.shape[-1])
        return output + (flat @ down[:, 0].mT @ up[0].mT * self.scale).view_as(output).to(output.dtype)


@dataclass(frozen=True)
class BatchedLoraForward:
    """Replaces the forward of a peft layer for a pass in which documents have adapters of their own."""

    adapters: Sequence[str]
    owner: Tensor

    @classmethod
    def of(cls, layer: Any) -> BatchedLoraForward | None:
        """The one that replaces the forward of this layer, if it does."""
        replacement = getattr(vars(layer).get("forward"), "func", None)
        return replacement if isinstance(replacement, cls) else None

    def lora_of(self, layer: Any) -> BatchedLora:
        # Made when the pass reaches the layer, while the GPU is busy.
        return BatchedLora.of(layer, self.adapters, self.owner)

    def __call__(self, original: Any, layer: Any, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.lora_of(layer).add_to(layer.base_layer(rows, *args, **kwargs), rows)


def gather(layers: Sequence[BatchedLora]) -> tuple[Tensor, Tensor]:
    """Each document's matrices for several layers at once, in few operations, because each launch takes time.

    Down [documents, layers, rank, width], and up [layers, documents, width, rank].
    """
    rank, owner = -(-max(layer.rank for layer in layers) // STEP) * STEP, layers[0].owner
    downs = [down for adapter in zip(*(layer.downs for layer in layers), strict=True) for down in adapter]
    ups = [up for layer in layers for up in layer.ups]
    down = torch.stack(_of_one_shape(downs, 0, rank)).unflatten(0, (-1, len(layers)))
    up = torch.stack(_of_one_shape(ups, 1, rank)).unflatten(0, (len(layers), -1))
    return down[owner], up.index_select(1, owner)


def _of_one_shape(matrices: list[Tensor | None], dimension: int, rank: int) -> list[Tensor]:
    """The matrices with the rank in this dimension padded with zeros; all zeros where an adapter has none."""
    example = next(matrix for matrix in matrices if matrix is not None)
    nothing: Tensor | None = None
    result = []
    for matrix in matrices:
        if matrix is None:
            if nothing is None:
                nothing = example.new_zeros(*example.shape[:dimension], rank, *example.shape[dimension + 1 :])
            matrix = nothing
        elif missing := rank - matrix.shape[dimension]:
            matrix = F.pad(matrix, (0, 0, 0, missing) if dimension == 0 else (0, missing))
        result.append(matrix)
    return result

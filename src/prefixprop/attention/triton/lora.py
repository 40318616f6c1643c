"""LoRA around frozen linear layers that are computed in one piece: a side path beside them, which is trained.

Linear layers that read the same rows share a path. What goes down (rows Aᵀ) is one product for all of them, and is
kept for backward; what comes up (· Bᵀ) is added in place to the part of the output that each layer makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from prefixprop.attention.batched_lora import NAME, DocumentLora, gather
from prefixprop.attention.hooks import is_watched
from prefixprop.attention.triton import dropped_products
from prefixprop.attention.triton.dropout import draw_words

STEP = 16  # ranks are padded to a multiple of this, which matrix units want
MOST_RANK = 128  # with dropout: a program holds all of it


class Piece(NamedTuple):
    """What an adapter adds to a linear layer: scale · up(down(dropout(rows)))."""

    place: int  # which part of the output the layer makes
    scale: float
    dropout: float
    rank: int
    # Down, A: [rank, width of the rows], and up, B: [width of the part, rank]; or those of each document.
    matrices: tuple[Tensor, Tensor] | DocumentLora


def unwrap(linear: Any, place: int = 0) -> tuple[Any, list[Piece]] | None:
    """The plain linear layer and what LoRA adds to it; None if something else is around it, or somebody watches."""
    if is_watched(linear):
        return None
    if type(linear) is nn.Linear:
        return linear, []
    if type(linear) is not LoraLinear or type(linear.base_layer) is not nn.Linear or is_watched(linear.base_layer):
        return None
    if NAME in vars(linear):
        own: DocumentLora = getattr(linear, NAME)()
        return linear.base_layer, [Piece(place, own.scale, 0.0, own.rank, own)]
    if "forward" in vars(linear):
        return None
    if linear.merged or linear.disable_adapters:
        # When it is called, peft takes out of the weights what is merged and disabled.
        return None if linear.merged and linear.disable_adapters else (linear.base_layer, [])
    pieces = [_piece(linear, name, place) for name in linear.active_adapters if name in linear.lora_A]
    whole = [piece for piece in pieces if piece is not None]
    return (linear.base_layer, whole) if len(whole) == len(pieces) else None


def _piece(linear: Any, adapter: str, place: int) -> Piece | None:
    down, up, dropout = linear.lora_A[adapter], linear.lora_B[adapter], linear.lora_dropout[adapter]
    if adapter in linear.lora_variant or type(down) is not nn.Linear or type(up) is not nn.Linear:
        return None  # DoRA, for instance
    if (
        up.bias is not None
        or type(dropout) not in (nn.Dropout, nn.Identity)
        or any(map(is_watched, (down, up, dropout)))
    ):
        return None
    probability = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    scale, rank = float(linear.scaling[adapter]), down.weight.shape[0]
    return Piece(place, scale, probability, rank, (down.weight, up.weight))


def fit_together(pieces: Sequence[Piece]) -> bool:
    """Whether all have the same dropout, and the kernels for it hold their ranks."""
    found = {(piece.dropout, isinstance(piece.matrices, DocumentLora)) for piece in pieces}
    return len(found) <= 1 and not any(piece.dropout > 0 and piece.rank > MOST_RANK for piece in pieces)


class Plan(NamedTuple):
    """What is known of a path beside its tensors."""

    places: tuple[int, ...]
    ranks: tuple[int, ...]  # empty where documents have their own: then all have one
    scales: tuple[float, ...]
    dropout: float

    @property
    def tensors(self) -> int:
        """How many tensors are spelt out: each piece's two matrices, or two with all, then two tensors of words."""
        return 2 * (len(self.ranks) or 1) + 2 if self.places else 0


def spell_out(paths: Sequence[Sequence[Piece]], rows: int) -> tuple[tuple[Plan, ...], list[Tensor]]:
    """Paths as an operation takes them: plans, and all tensors one after the other; `read` puts them together."""
    plans, tensors = [], []
    for pieces in paths:
        dropout = pieces[0].dropout if pieces else 0.0
        documents = [piece.matrices for piece in pieces if isinstance(piece.matrices, DocumentLora)]
        own = [
            matrix for piece in pieces if not isinstance(piece.matrices, DocumentLora) for matrix in piece.matrices
        ]
        matrices = list(gather(documents)) if documents else own
        ranks = () if documents else tuple(piece.rank for piece in pieces)
        plans.append(Plan(tuple(p.place for p in pieces), ranks, tuple(p.scale for p in pieces), dropout))
        if pieces:
            tensors += matrices
            tensors += draw_words((rows, len(pieces) * matrices[0].shape[-1]), matrices[0], dropout)
    return tuple(plans), tensors


class SidePath(NamedTuple):
    """Matrices of one rank for all pieces, and for each group of rows: one group, or documents that have their own.

    `down` is [groups, pieces, rank, width of the rows], `up` [pieces, groups, width of a part, rank].
    """

    plan: Plan
    down: Tensor
    up: Tensor
    row_words: Tensor
    column_words: Tensor

    @classmethod
    def read(cls, plans: Sequence[Plan], tensors: Sequence[Tensor], dtype: torch.dtype) -> list[SidePath | None]:
        """None for a path without a piece."""
        paths: list[SidePath | None] = []
        for plan in plans:
            own, tensors = tensors[: plan.tensors], tensors[plan.tensors :]
            if not own:
                paths.append(None)
                continue
            *matrices, row_words, column_words = own
            if not plan.ranks:
                paths.append(cls(plan, matrices[0].to(dtype), matrices[1].to(dtype), row_words, column_words))
                continue
            pieces, rank = len(plan.places), -(-max(plan.ranks) // STEP) * STEP
            down = matrices[0].new_zeros(1, pieces, rank, matrices[0].shape[1], dtype=dtype)
            up = matrices[1].new_zeros(pieces, 1, len(matrices[1]), rank, dtype=dtype)
            for piece, own_rank in enumerate(plan.ranks):
                down[0, piece, :own_rank] = matrices[2 * piece]
                up[piece, 0, :, :own_rank] = matrices[2 * piece + 1]
            paths.append(cls(plan, down, up, row_words, column_words))
        return paths

    def _by_group(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (len(self.down), -1))

    def descend(self, rows: Tensor) -> Tensor:
        """[rows, pieces * rank]: dropout(rows) Aᵀ of all pieces."""
        if self.plan.dropout:
            return dropped_products.descend(rows, self.down[0], self.row_words, self.column_words, self.plan.dropout)
        return torch.bmm(self._by_group(rows), self.down.flatten(1, 2).mT).flatten(0, 1)

    def low(self, lowered: Tensor, piece: int) -> Tensor:
        """A piece's own of what `descend` made, or of its gradient."""
        rank = self.down.shape[2]
        return lowered[:, piece * rank : (piece + 1) * rank]

    def ascend(self, lowered: Tensor, piece: int, part: Tensor) -> None:
        """Add what a piece makes to its part of the output."""
        low = self._by_group(self.low(lowered, piece))
        self._by_group(part).baddbmm_(low, self.up[piece].mT, alpha=self.plan.scales[piece])

    def gradients(self, lowered: Tensor, rows: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Gradients of what `descend` made, and of all tensors spelt out, by those of each piece's part."""
        for_low, for_ups = torch.empty_like(lowered), []
        for piece, (part, scale) in enumerate(zip(map(self._by_group, parts), self.plan.scales, strict=True)):
            self._by_group(self.low(for_low, piece)).baddbmm_(part, self.up[piece], beta=0, alpha=scale)
            for_ups.append(torch.bmm(part.mT, self._by_group(self.low(lowered, piece))).mul_(scale))
        if self.plan.dropout:
            words = (self.row_words, self.column_words)
            for_down = dropped_products.down_gradient(for_low, rows, self.down[0], *words, self.plan.dropout)[None]
        else:
            for_down = torch.bmm(self._by_group(for_low).mT, self._by_group(rows)).view_as(self.down)
        of_matrices: list[Tensor | None] = []
        for piece, rank in enumerate(self.plan.ranks):
            of_matrices += [for_down[0, piece, :rank], for_ups[piece][0, :, :rank]]
        return for_low, [*(of_matrices or [for_down, torch.stack(for_ups)]), None, None]

    def add_back(self, for_low: Tensor, result: Tensor) -> None:
        """Add to the rows' gradient what comes through the path."""
        if self.plan.dropout:
            words = (self.row_words, self.column_words)
            dropped_products.add_back(for_low, self.down[0], *words, self.plan.dropout, result)
        else:
            self._by_group(result).baddbmm_(self._by_group(for_low), self.down.flatten(1, 2))


def add_side(path: SidePath | None, rows: Tensor, output: Tensor) -> Tensor | None:
    """Add the path of a single linear layer to its output; what went down is for backward."""
    if path is None:
        return None
    flat, lowered = output.flatten(0, -2), path.descend(rows.flatten(0, -2))
    for piece in range(len(path.plan.places)):
        path.ascend(lowered, piece, flat)
    return lowered


def side_gradients(
    path: SidePath | None, lowered: Tensor | None, rows: Tensor, gradient: Tensor, result: Tensor | None
) -> list[Tensor | None]:
    """Gradients of a single layer's matrices by that of its output; to `result`, the rows' own, is added if given."""
    if path is None or lowered is None:
        return []
    for_low, found = path.gradients(lowered, rows, [gradient] * len(path.plan.places))
    if result is not None:
        path.add_back(for_low, result)
    return found

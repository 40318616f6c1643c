"""LoRA around frozen linear layers that are computed in one piece: a side path beside them, which is trained.

Linear layers that read the same rows share a path. What goes down (rows Aᵀ) is one product for all of them, and is
kept for backward; what comes up (· Bᵀ) is added in place to the part of the output that each layer makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from prefixprop.attention.document_lora import NAME, DocumentLora
from prefixprop.attention.gpu import dropped_products
from prefixprop.attention.gpu.dropout import draw_words
from prefixprop.attention.watching import is_watched

STEP = 16  # ranks are padded to a multiple of this, which matrix units want
MOST_RANK = 128  # with dropout: a program holds all of it


class Piece(NamedTuple):
    """What an adapter adds to a linear layer: scale · up(down(dropout(rows)))."""

    place: int  # which part of the output the layer makes
    down: Tensor  # A: [rank, width of the rows]
    up: Tensor  # B: [width of the part, rank]
    scale: float
    dropout: float
    share: Tensor | None = None  # [documents, rank]: where each has its own, 0 for the others'


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
        down, up = own.down.flatten(0, 1), own.up.transpose(0, 1).flatten(1)
        return linear.base_layer, [Piece(place, down, up, own.scale, 0.0, own.share)]
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
    return Piece(place, down.weight, up.weight, float(linear.scaling[adapter]), probability)


def fit_together(pieces: Iterable[Piece]) -> bool:
    """Whether all have the same dropout, and the kernels for it hold their ranks."""
    found = {
        (piece.dropout, piece.share is None, piece.dropout > 0 and len(piece.down) > MOST_RANK) for piece in pieces
    }
    return len(found) <= 1 and not any(too_many for *_, too_many in found)


class Plan(NamedTuple):
    """What is known of a path beside its tensors."""

    places: tuple[int, ...]
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    dropout: float
    shared: bool  # by documents, each of which has its own

    @property
    def tensors(self) -> int:
        """How many tensors are spelt out: a piece's two matrices, shares, then two tensors of words."""
        return (2 + self.shared) * len(self.places) + 2 if self.places else 0


def spell_out(paths: Sequence[Sequence[Piece]], rows: int) -> tuple[tuple[Plan, ...], list[Tensor]]:
    """Paths as an operation takes them: plans, and all tensors one after the other; `read` puts them together."""
    plans, tensors = [], []
    for pieces in paths:
        dropout = pieces[0].dropout if pieces else 0.0
        columns = [(piece.place, len(piece.down), piece.scale) for piece in pieces]
        places, ranks, scales = zip(*columns, strict=True) if pieces else ((), (), ())
        shares = [piece.share for piece in pieces if piece.share is not None]
        plans.append(Plan(places, ranks, scales, dropout, bool(shares)))
        if pieces:
            width = pieces[0].down.shape[1]
            tensors += [matrix for piece in pieces for matrix in (piece.down, piece.up)]
            tensors += shares
            tensors += draw_words((rows, len(pieces) * width), pieces[0].down, dropout)
    return tuple(plans), tensors


class SidePath(NamedTuple):
    """`down` [pieces, rank, width of the rows] and `up` [pieces, width of a part, rank] have one rank for all.

    Where documents have their own, `share` [documents, 1, pieces * rank] has zeros for the others'.
    """

    plan: Plan
    down: Tensor
    up: Tensor
    row_words: Tensor
    column_words: Tensor
    share: Tensor | None

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
            pieces, rank = len(plan.places), -(-max(plan.ranks) // STEP) * STEP
            down = matrices[0].new_zeros(pieces, rank, matrices[0].shape[1], dtype=dtype)
            up = matrices[1].new_zeros(pieces, len(matrices[1]), rank, dtype=dtype)
            share = None
            if plan.shared:
                share = matrices[-1].new_zeros(len(matrices[-1]), 1, pieces, rank, dtype=dtype)
            for piece, own_rank in enumerate(plan.ranks):
                down[piece, :own_rank] = matrices[2 * piece]
                up[piece, :, :own_rank] = matrices[2 * piece + 1]
                if share is not None:
                    share[:, 0, piece, :own_rank] = matrices[2 * pieces + piece]
            paths.append(cls(plan, down, up, row_words, column_words, share if share is None else share.flatten(2)))
        return paths

    def descend(self, rows: Tensor) -> Tensor:
        """[rows, pieces * rank]: dropout(rows) Aᵀ of all pieces."""
        if self.plan.dropout:
            return dropped_products.descend(rows, self.down, self.row_words, self.column_words, self.plan.dropout)
        return self._shared(rows @ self.down.flatten(0, 1).t())

    def _shared(self, lowered: Tensor) -> Tensor:
        if self.share is not None:
            lowered.view(len(self.share), -1, self.share.shape[2]).mul_(self.share)
        return lowered

    def low(self, lowered: Tensor, piece: int) -> Tensor:
        """A piece's own of what `descend` made, or of its gradient."""
        rank = self.down.shape[1]
        return lowered[:, piece * rank : (piece + 1) * rank]

    def ascend(self, lowered: Tensor, piece: int, part: Tensor) -> None:
        """Add what a piece makes to its part of the output."""
        part.addmm_(self.low(lowered, piece), self.up[piece].t(), alpha=self.plan.scales[piece])

    def gradients(self, lowered: Tensor, rows: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Gradients of what `descend` made, and of all tensors spelt out, by those of each piece's part."""
        for_low, found = torch.empty_like(lowered), []
        for piece, (part, scale) in enumerate(zip(parts, self.plan.scales, strict=True)):
            self.low(for_low, piece).addmm_(part, self.up[piece], beta=0, alpha=scale)
            found.append((part.t() @ self.low(lowered, piece)).mul_(scale))
        self._shared(for_low)
        if self.plan.dropout:
            words = (self.row_words, self.column_words)
            for_down = dropped_products.down_gradient(for_low, rows, self.down, *words, self.plan.dropout)
        else:
            for_down = (for_low.t() @ rows).view_as(self.down)
        of_matrices: list[Tensor | None] = []
        for piece, rank in enumerate(self.plan.ranks):
            of_matrices += [for_down[piece, :rank], found[piece][:, :rank]]
        return for_low, [*of_matrices, *[None] * (self.plan.shared * len(self.plan.places)), None, None]

    def add_back(self, for_low: Tensor, result: Tensor) -> None:
        """Add to the rows' gradient what comes through the path."""
        if self.plan.dropout:
            words = (self.row_words, self.column_words)
            dropped_products.add_back(for_low, self.down, *words, self.plan.dropout, result)
        else:
            result.addmm_(for_low, self.down.flatten(0, 1))


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

"""Kernel decomposition (Eq. 3): a row's attention as two separately normalised parts.

    H = softmax attention over the keys that are no prefix  +  α · Σ_p k(q, k_p) v_p / Σ_p k(q, k_p)

α replaces λ, the share that softmax over all keys would give the prefix: with λ in place of α and 1-λ on the first
part, the kernel `exp` gives Eq. 1 again.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from prefixprop.attention.prefix import FusedPart
from prefixprop.attention.sliding_window import wide
from prefixprop.config import PrefixConfig
from prefixprop.kernels import Exponential, Kernel, Linear, Polynomial, RadialBasis, build_kernel

BLOCK_ROWS = 1024


class PrefixAttention(nn.Module):
    """The second part of Eq. 3, α · Kern(q, P_k, P_v), for all layers of one adapter.

    α is fixed, trained as one number per layer or per head, or made from each query: in mode `query` it is
    α · 2σ(⟨w, q⟩ / √d) with a trained w per head that starts at zero, so training starts at α.
    """

    def __init__(self, kernel: Kernel, mode: str, start: float, heads: int, size: int, weight: Tensor | None) -> None:
        super().__init__()
        self.kernel, self.mode, self.start, self.heads, self.size = kernel, mode, start, heads, size
        if weight is not None:
            self.weight = weight

    @classmethod
    def new(cls, config: PrefixConfig, layers: int, heads: int, size: int) -> PrefixAttention:
        """For a new adapter."""
        shapes = {"layer": (layers,), "head": (layers, heads), "query": (layers, heads, size)}
        mode, start = config.alpha_mode, float(config.alpha)
        shape = shapes.get(mode)
        weight = None if shape is None else nn.Parameter(torch.full(shape, 0.0 if mode == "query" else start))
        return cls(build_kernel(config), mode, start, heads, size, weight)

    @classmethod
    def mixed(cls, parts: list[PrefixAttention], owner: Tensor) -> PrefixAttention:
        """For a batch whose document i has `parts[owner[i]]`; the parts differ only in trained weights."""
        first = parts[0]
        weight = None if first.mode == "fixed" else torch.stack([part.weight for part in parts], dim=1)[:, owner]
        return cls(first.kernel, first.mode, first.start, first.heads, first.size, weight)

    def forward(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, dropout: float) -> Tensor:
        """For queries [batch, heads, rows, size], and prefix keys and values [batch or 1, heads, j, size].

        Only these are kept for backward, which computes each block of rows again.
        """
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # a compiler decides for itself
            return self._attend(layer, query, keys, values, dropout)
        blocks = [
            checkpoint(
                self._attend, layer, rows, keys, values, dropout, use_reentrant=False, preserve_rng_state=dropout > 0
            )
            for rows in query.split(BLOCK_ROWS, dim=2)
        ]
        return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]

    def _attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, dropout: float) -> Tensor:
        # In float32 at least: a polynomial of half-precision scores loses the differences between keys.
        with torch.autocast(query.device.type, enabled=False):
            rows, keys, values = (each.to(wide(query.dtype)) for each in (query, keys, values))
            weights = F.dropout(self.kernel.weights(rows, keys), dropout)
            return (self.alpha(layer, rows) * (weights @ values)).to(query.dtype)

    def fused(self, layer: int) -> FusedPart | None:
        """The same for backends that compute it themselves.

        None for a custom kernel, and where each document has a trained α of its own.
        """
        if self.mode != "fixed" and not isinstance(self.weight, nn.Parameter):
            return None
        root = math.sqrt(self.size)
        scales = {
            Exponential: lambda _: (1 / root, 0.0, 1),
            RadialBasis: lambda kernel: (
                1 / (root if kernel.length_scale is None else kernel.length_scale**2),
                0.0,
                1,
            ),
            Polynomial: lambda kernel: (1 / root, kernel.offset, kernel.degree),
            Linear: lambda _: (1 / math.sqrt(root), 0.0, 1),
        }
        known = scales.get(type(self.kernel))
        if known is None:
            return None
        trained = None
        if self.mode != "fixed":
            trained = self.weight[layer].float()
            trained = trained.expand(self.heads).contiguous() if self.mode == "layer" else trained
        return FusedPart(self.kernel.name, *known(self.kernel), self.start, trained)

    def alpha(self, layer: int, query: Tensor) -> Tensor | float:
        """A number, or a tensor that broadcasts to [batch, heads, rows, 1]."""
        if self.mode == "fixed":
            return self.start
        weight = self.weight[layer].to(query.dtype)
        # Of one adapter for all documents, or with a batch dimension.
        if self.mode == "layer":
            return weight[..., None, None, None]
        if self.mode == "head":
            return weight[..., None, None]
        return self.start * 2 * torch.sigmoid(query @ weight[..., None] / math.sqrt(query.shape[-1]))

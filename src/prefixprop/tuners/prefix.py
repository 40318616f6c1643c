"""The trained numbers of one adapter, and the network that may produce them during training."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INIT_STD = 0.02


class PrefixNetwork(nn.Module):
    """MLP reparameterisation (Li & Liang, 2021): j embeddings go through two layers to every layer's prefix."""

    def __init__(self, layers: int, length: int, features: int, width: int, hidden: int) -> None:
        super().__init__()
        self.features = features
        self.embedding = nn.Parameter(torch.randn(length, width))
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, layers * features)
        # About INIT_STD for the prefix that comes out, as for a prefix trained directly.
        nn.init.normal_(self.outer.weight, std=2 * INIT_STD / math.sqrt(hidden))
        nn.init.zeros_(self.outer.bias)

    def forward(self, layer: int) -> Tensor:
        """[j, features] of one layer."""
        rows = slice(layer * self.features, (layer + 1) * self.features)
        return F.linear(torch.tanh(self.inner(self.embedding)), self.outer.weight[rows], self.outer.bias[rows])


class Prefix(nn.Module):
    """The prefix of one adapter, [layers, *shape of one layer], with dropout per example.

    With a network the prefix is `weight + network`, where only the network is trained: `weight` then holds what was
    loaded or set, so a saved prefix can be put back without the network that made it.
    """

    weight: Tensor

    def __init__(
        self, start: Tensor, dropout: float, network: PrefixNetwork | None = None, gated: bool = False
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.network = network
        self.gate = nn.Parameter(start.new_ones(len(start))) if gated else None
        if network is None:
            self.weight = nn.Parameter(start)
        else:
            self.register_buffer("weight", start)

    def layer(self, index: int, batch: int) -> Tensor:
        """One layer's prefix, times its gate, for `batch` examples; a single one for all if they do not differ."""
        value = self._of_layer(index)[None]
        if self.gate is not None:
            value = value * self._scale(self.gate[index])
        if self.training and self.dropout:
            value = F.dropout(value.expand(batch, *value.shape[1:]), self.dropout)
        return value

    def gated(self) -> Tensor:
        """The whole prefix, times its gates: what layers see of it without dropout."""
        return self.value() if self.gate is None else self.value() * self._scale(self.gate)

    def _scale(self, gate: Tensor) -> Tensor:
        """What rows are scaled by, or keys and values: values alone, which scales what attention takes from them."""
        if self.weight.dim() == 3:
            return gate[..., None, None]
        return F.pad(gate[..., None], (1, 0), value=1.0)[..., None, None, None]

    def value(self) -> Tensor:
        """The whole prefix without its gates: the parameter itself, or what the network makes of it."""
        if self.network is None:
            return self.weight
        return torch.stack([self._of_layer(index) for index in range(len(self.weight))])

    @torch.no_grad()
    def assign(self, value: Tensor) -> None:
        """Make `value` the prefix."""
        self.weight.copy_(value if self.network is None else value - self.from_network())

    def from_network(self) -> Tensor:
        assert self.network is not None
        return torch.stack([self._network_of_layer(index) for index in range(len(self.weight))])

    def _of_layer(self, index: int) -> Tensor:
        return self.weight[index] if self.network is None else self.weight[index] + self._network_of_layer(index)

    def _network_of_layer(self, index: int) -> Tensor:
        assert self.network is not None
        rows = self.network(index)
        if self.weight.dim() == 3:
            return rows
        _, two, heads, length, size = self.weight.shape  # prefix-tuning: keys and values, split into heads
        return rows.view(length, two, heads, size).permute(1, 2, 0, 3)


class MixedPrefix:
    """The prefixes of several adapters for a batch, one per document, gathered once for all layers.

    Document i has `prefixes[owner[i]]`. For inference: there is no dropout.
    """

    def __init__(self, prefixes: list[Prefix], owner: Tensor) -> None:
        self.values = torch.stack([prefix.gated() for prefix in prefixes], dim=1)[:, owner]

    def layer(self, index: int, batch: int) -> Tensor:
        return self.values[index]

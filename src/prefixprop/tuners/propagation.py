"""Prefix-propagation (Eq. 1).

    D(1) = cat(P(1), C)          C the embedded sequence
    D(l) = D(l) with P(l) added to its first j rows, before layer l > 1

The virtual tokens pass through attention and feed-forward like any other token; in Longformer they are global. Those
of an adapter with `read_only` are not in front of the text, see `reading`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from prefixprop.attention.patch import has_output_hooks, replace_forward
from prefixprop.config import PrefixConfig, PrefixPeftType
from prefixprop.tuners.base import PrefixTuner
from prefixprop.tuners.layer import PrefixAdapter, PrefixLayer, is_read_only
from prefixprop.tuners.reading import reading_forward


class PropagationLayer(PrefixLayer):
    adapter_layer_names = ("propagation_prefix", "propagation_alpha")
    _can_read = False  # whether the encoder's forward is replaced, which only adapters with read_only need

    def shape(self, length: int) -> tuple[int, ...]:
        config = self.backbone.config
        return (config.num_hidden_layers, length, config.hidden_size)

    def words_as_prefix(self, input_ids: Tensor, config: PrefixConfig) -> Tensor:
        """The embedded tokens at layer 1; nothing is added at later layers."""
        first = self.backbone.embed(input_ids)[0]
        if config.layout == "reference":
            first = first - self.backbone.embed_empty_words(config.num_virtual_tokens)
        prefix = torch.zeros(self.shape(config.num_virtual_tokens), device=first.device, dtype=first.dtype)
        prefix[0] = first
        return prefix

    def attach(self) -> None:
        super().attach()
        self._undo += self.backbone.attach_rows(self)
        for index, layer in enumerate(self.backbone.layers[1:], start=1):
            hook = partial(self._enter_layer, index)
            self._undo.append(layer.register_forward_pre_hook(hook).remove)

    def add_prefix(self, adapter: str, config: PrefixConfig) -> None:
        if is_read_only(config) and not self._can_read:
            self._can_read = True
            self._undo.append(replace_forward(self.backbone.module, partial(reading_forward, self)))
        super().add_prefix(adapter, config)

    def propagated(self) -> PrefixAdapter | None:
        """The active adapter, if its virtual tokens are in front of the text."""
        active = self.active_prefix()
        return None if active is None or is_read_only(active.config) else active

    def virtual_tokens(self) -> int:
        active = self.propagated()
        return 0 if active is None else active.config.num_virtual_tokens

    def first_rows(self, states: Tensor) -> Tensor | None:
        active = self.propagated()
        if active is None:
            return None
        rows = active.prefix.layer(0, states.shape[0]).to(states.dtype)
        if active.config.layout == "reference":
            rows = rows + self.backbone.embed_empty_words(active.config.num_virtual_tokens)
        return rows.to(states.dtype).expand(states.shape[0], -1, -1)

    def _enter_layer(self, index: int, layer: Any, args: tuple) -> tuple | None:
        active = self.propagated()
        if active is None:
            return None
        hidden_states, *others = args
        rows = active.prefix.layer(index, hidden_states.shape[0])
        in_place = not torch.compiler.is_compiling() and self._owns_states(index, layer)
        return ((_add_in_place if in_place else _add)(hidden_states, rows), *others)

    def _owns_states(self, index: int, layer: Any) -> bool:
        """Whether nothing else uses a layer's input states: no recomputation and no hook."""
        again = layer.training and getattr(layer, "gradient_checkpointing", False)
        is_seen = len(layer._forward_pre_hooks) > 1 or has_output_hooks(self.backbone.layers[index - 1])
        return not (again or is_seen)


def _add(states: Tensor, rows: Tensor) -> Tensor:
    """States with `rows` [batch or 1, j, hidden] added to their first j rows."""
    length = rows.shape[1]
    return torch.cat([states[:, :length] + rows.to(states.dtype), states[:, length:]], dim=1)


class _AddInPlace(torch.autograd.Function):
    """The same in place, without a copy of the states."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, rows: Tensor) -> Tensor:
        ctx.length, ctx.shared, ctx.dtype = rows.shape[1], rows.shape[0] == 1, rows.dtype
        ctx.mark_dirty(states)
        states[:, : ctx.length].add_(rows)
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        rows = gradient[:, : ctx.length]
        shared = rows.sum(dim=0, keepdim=True, dtype=ctx.dtype) if ctx.shared else rows.to(ctx.dtype)
        return gradient, shared


def _add_in_place(states: Tensor, rows: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return _AddInPlace.apply(states, rows)
    states[:, : rows.shape[1]].add_(rows)
    return states


class PrefixPropagationModel(PrefixTuner):
    """The peft tuner of `PrefixPropagationConfig`."""

    prefix = "propagation_"
    peft_type = PrefixPeftType.PREFIX_PROPAGATION
    tuner_layer_cls = PropagationLayer

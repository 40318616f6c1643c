"""What a layer's block needs, worked out once and kept until the layer changes: which parts can be fused, joined
weights, LoRA.

Every call compares a cheap fingerprint: modules, parameters and their types, hooks, adapters, dropout, training mode,
and of weights that were copied their addresses and versions. In-place changes (`load_state_dict`, `copy_`) raise a
parameter's version. The one way past PyTorch's counter is to write into `parameter.data` in place, as peft does to
merge an adapter; what is merged is part of the fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from operator import attrgetter, contains, methodcaller
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from prefixprop.attention.patch import GLOBAL_HOOKS, HOOKS

Join = Callable[[str, list[Tensor]], Tensor]
_VALUES, _TYPE, _VERSION = methodcaller("values"), attrgetter("dtype", "requires_grad"), attrgetter("_version")
_TRAINING, _PROBABILITY = attrgetter("training"), attrgetter("p")


class BlockPlan(NamedTuple):
    """The two ends of a block, made for the layer's family; None where its modules must be called."""

    enter: Any
    leave: Any


class KeptPlan:
    """The plan of one layer, for its present state.

    `work_out` is a family's function of the layer, the type to compute in, and how to join weights.
    """

    def __init__(self, layer: nn.Module, work_out: Callable[[Any, torch.dtype, Join], BlockPlan]) -> None:
        self.layer, self.work_out = layer, work_out
        self._joined: dict[str, tuple[Any, Tensor]] = {}
        self._state: Any = None
        self._tables: list[Any] = []

    def __reduce__(self) -> Any:
        """A copy of a layer makes a plan of its own."""
        return KeptPlan, (self.layer, self.work_out)

    def _watch(self) -> None:
        """Remember where to look; again whenever a module was replaced."""
        parts = list(self.layer.modules())
        self._parts = parts
        self._tables = [table for part in parts for table in (part._modules, part._parameters)]
        self._hooks = [getattr(part, name) for part in parts for name in HOOKS] + GLOBAL_HOOKS
        self._attributes = [vars(part) for part in parts]
        self._dropouts = [part for part in parts if isinstance(part, nn.Dropout)]
        self._lora: list[Any] = [part for part in parts if isinstance(part, LoraLayer)]
        # Kept, for no other object to get their addresses.
        self._found = [*chain.from_iterable(map(_VALUES, self._tables))]
        self._tensors: list[Tensor] = [found for found in self._found if isinstance(found, Tensor)]
        self._copied: list[Tensor] = []  # to joined weights; a plan refers to all other tensors

    def for_type(self, dtype: torch.dtype) -> BlockPlan:
        if not self._tables or self._fingerprint(dtype) != self._state:
            self._watch()
            plan = self.work_out(self.layer, dtype, self._join)
            if _is_recording(self._tensors):  # it is made again at each replay, and belongs to the recording
                return plan
            self._plan, self._state = plan, self._fingerprint(dtype)
        return self._plan

    def _fingerprint(self, dtype: torch.dtype) -> tuple[Any, ...]:
        # Maps of built-in functions, because this runs for every layer of every pass.
        return (
            dtype,
            [*map(id, chain.from_iterable(map(_VALUES, self._tables)))],
            [*map(_TYPE, self._tensors)],
            [*map(_VERSION, self._copied)],
            [*map(Tensor.data_ptr, self._copied)],
            [*map(_TRAINING, self._parts)],
            [*map(len, self._hooks)],
            [*map(contains, self._attributes, repeat("_hf_hook"))],
            [*map(_PROBABILITY, self._dropouts)],
            [*map(_adapters, self._lora)],
        )

    def _join(self, name: str, tensors: list[Tensor]) -> Tensor:
        """The tensors one after the other, made again only if one of them has changed.

        At the same address if it can be: a recorded pass goes on reading there.
        """
        self._copied += tensors
        key = [(t.data_ptr(), t._version, t.dtype) for t in tensors], [[*lora.merged_adapters] for lora in self._lora]
        made, joined = self._joined.get(name, (None, None))
        if joined is not None and made == key:
            return joined
        # Not under inference mode, whose tensors cannot be used for training afterwards.
        with torch.inference_mode(False), torch.no_grad():
            if _is_recording(tensors):
                return torch.cat(tensors)
            fits = joined is not None and _kind(joined) == _kind(tensors[0])
            joined = torch.cat(tensors, out=joined if fits else None)
        self._joined[name] = key, joined
        return joined


Plans = dict[nn.Module, KeptPlan]  # of layers


def plan_for(
    plans: Plans, layer: nn.Module, dtype: torch.dtype, work_out: Callable[[Any, torch.dtype, Join], BlockPlan]
) -> BlockPlan:
    """The plan of a layer, kept in `plans`."""
    kept = plans.get(layer)
    if kept is None:
        kept = plans[layer] = KeptPlan(layer, work_out)
    return kept.for_type(dtype)


def _adapters(lora: Any) -> tuple[Any, ...]:
    return (
        [*lora.active_adapters],
        lora.disable_adapters,
        [*lora.merged_adapters],
        dict(lora.scaling),
        [*lora.lora_variant],
        vars(lora).get("forward"),  # the object itself, so that no other gets its address
    )


def _is_recording(tensors: Iterable[Tensor]) -> bool:
    """Whether operations are recorded for a CUDA graph and not computed yet."""
    return any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tensor.shape[1:]

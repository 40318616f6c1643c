"""Many adapters in one batch: each document has its own prefix, head and LoRA.

Documents whose adapters have the same structure go through the model together, because a prefix per document is a
prefix with a batch dimension. Other structures get another forward pass, and the outputs are put back in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from peft import PeftConfig
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn

from prefixprop.attention.batched_lora import BatchedLoraForward, Owners
from prefixprop.attention.patch import Undo, replace_forward
from prefixprop.config import PrefixConfig
from prefixprop.tuners.layer import PrefixLayer

BASE = "__base__"  # peft's name for no adapter
# Adapters that differ in these alone can share a pass. Whatever else a configuration has may decide a shape.
_MAY_DIFFER = {"prefix_dropout", "init", "reparameterize", "reparameterize_hidden", "gate", "lora", "modules_to_save"}
_OF_PEFT = {option.name for option in fields(PeftConfig)}
_ADAPTED = (BaseTunerLayer, AuxiliaryTrainingWrapper)
_ANSWERS = ("labels", "start_positions", "end_positions")


class MixedBatch(nn.Module):
    """Replaces a model while it is called with an adapter for each document."""

    def __init__(self, model: nn.Module, names: Any, configs: Mapping[str, PrefixConfig]) -> None:
        super().__init__()
        self.model = model
        self.names = _checked(names, configs)
        self.configs = configs
        # A list, for `Module` not to register them again.
        self.adapted = _adapted_parts(model)
        lora_layers = [layer for layer in self.adapted if isinstance(layer, LoraLayer)]
        self.special = set().union(*(layer.lora_variant for layer in lora_layers))  # adapters with DoRA and the like
        if model.training:
            raise ValueError("adapter_names is for inference, and the model is in training mode; call eval() first.")
        if any(layer.merged for layer in lora_layers):
            raise ValueError("adapter_names needs unmerged weights; call unmerge_adapter() first.")

    @torch.compiler.disable  # forwards are replaced and put back, once for each pass
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tokens = _tokens(args, kwargs)
        batch = len(tokens)
        if len(self.names) != batch:
            raise ValueError(
                f"adapter_names has {len(self.names)} names for {batch} documents; give one name for each document."
            )
        if any(kwargs.get(name) is not None for name in _ANSWERS):
            raise ValueError("adapter_names computes no loss; leave the labels out and use the logits.")
        if "question_of_chunk" in kwargs:
            raise ValueError(
                "adapter_names does not work with a model that scores candidates, because a question has many rows "
                "in a batch; use set_adapter()."
            )
        passes = self._passes()
        if len(passes) == 1:
            with adapters_of(self.names, self.adapted, tokens.device):
                return self.model(*args, **kwargs)
        outputs = []
        order = [place for places in passes for place in places]
        in_turn = torch.tensor(order, pin_memory=tokens.is_cuda).to(tokens.device, non_blocking=True)
        for places, own in zip(passes, in_turn.split([len(places) for places in passes]), strict=True):
            part = partial(_part, own, batch)
            with adapters_of([self.names[place] for place in places], self.adapted, tokens.device):
                outputs.append(self.model(*map(part, args), **{name: part(value) for name, value in kwargs.items()}))
        return _merged(outputs, in_turn.argsort())

    def _passes(self) -> list[list[int]]:
        """The documents that can be computed together, as lists of their places in the batch."""
        structures = {name: self._structure(name) for name in set(self.names)}
        passes: dict[Any, list[int]] = {}
        for place, name in enumerate(self.names):
            passes.setdefault(structures[name], []).append(place)
        return list(passes.values())

    def _structure(self, name: str) -> tuple[Any, ...]:
        """All settings that decide shapes or which code runs."""
        if name == BASE:
            return (BASE,)
        config = self.configs[name]
        decisive = [option.name for option in fields(config) if option.name not in _MAY_DIFFER | _OF_PEFT]
        return (*(repr(getattr(config, option)) for option in decisive), None if self._can_be_mixed(name) else name)

    def _can_be_mixed(self, name: str) -> bool:
        """Whether its LoRA part can be computed for some documents of a batch: not DoRA or other variants."""
        lora = self.configs[name].lora
        if lora is None:
            return True
        is_plain = not (lora.target_parameters or lora.trainable_token_indices)
        return is_plain and name not in self.special


@contextmanager
def adapters_of(names: Sequence[str], modules: list[Any], device: torch.device) -> Iterator[None]:
    """Give each document its adapter, one of `names`, in all modules that adapters change.

    The adapters have the same structure. With a single one this does what `set_adapter` and `disable_adapter` do,
    without changing what is trained.
    """
    before = [(module, module._active_adapter, module._disable_adapters) for module in modules]
    undo: list[Undo] = []
    owners = Owners(names, device)
    try:
        for module in modules:
            is_off = owners.places.keys().isdisjoint(_adapters_in(module))
            _set(module, [names[0]], is_off)
            if len(owners.adapters) > 1 and not is_off:
                undo += _mixed(module, names, owners)
        yield
    finally:
        for each in undo:
            each()
        for module, active, disabled in before:
            _set(module, active, disabled)


def _set(module: Any, active: Any, is_off: bool) -> None:
    # Setting attributes of a `Module` is slow, and the GPU is idle until this is done.
    vars(module).update(_active_adapter=active, _disable_adapters=is_off)


def _adapters_in(module: Any) -> Iterable[str]:
    return module.lora_A.keys() if type(module) is LoraLinear else module._get_available_adapters()


def _mixed(module: Any, names: Sequence[str], owners: Owners) -> list[Undo]:
    if isinstance(module, PrefixLayer):
        return [module.mix(owners)]
    if isinstance(module, ModulesToSaveWrapper):
        return [replace_forward(module, partial(_own_heads, owners))]
    if not isinstance(module, LoraLayer):
        return []
    if type(module) is not LoraLinear or any(module.lora_bias.values()):
        return [replace_forward(module, partial(_lora_of_peft, names))]
    return [replace_forward(module, BatchedLoraForward(owners.adapters, owners.owner))]


def _own_heads(owners: Owners, _: Any, wrapper: Any, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The forward of peft's wrapper of a head, for documents that have different heads."""
    parts = rows[owners.by_adapter].split([len(own) for own in owners.places.values()])
    saved = dict(wrapper.modules_to_save.items())
    outputs = [
        saved.get(name, wrapper.original_module)(part, *args, **kwargs)
        for name, part in zip(owners.places, parts, strict=True)
    ]
    return _together(outputs)[owners.back]


def _lora_of_peft(names: Sequence[str], original: Any, layer: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """LoRA as peft computes it, but without peft's hooks, which would rule out the fused layers."""
    return original(*args, adapter_names=list(names), **kwargs)


def _adapted_parts(model: nn.Module) -> list[Any]:
    """The modules that adapters change. Skips the matrices inside them, because walking through all takes long."""
    found: list[Any] = []
    waiting: list[Any] = [model]
    while waiting:
        part = waiting.pop()
        is_adapted, has_base = _kind(part.__class__)
        if is_adapted:
            found.append(part)
        inner = (part.base_layer,) if has_base else part._modules.values()
        waiting += [each for each in inner if each is not None]
    return found


@cache
def _kind(of: type) -> tuple[bool, bool]:
    """Whether modules of a type are adapted, and whether all other modules in them are in `base_layer`."""
    return issubclass(of, _ADAPTED), issubclass(of, LoraLayer)


def _checked(names: Any, configs: Mapping[str, PrefixConfig]) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"adapter_names={names!r} must be a list with the name of an adapter for each document.")
    unknown = [name for name in dict.fromkeys(names) if name != BASE and name not in configs]
    if unknown:
        raise ValueError(
            f"There is no adapter {', '.join(map(repr, unknown))}; there are: {', '.join(configs)}, and {BASE} for "
            "none."
        )
    return list(names)


def _tokens(args: tuple, kwargs: dict[str, Any]) -> Tensor:
    given = [*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
    found = [tokens for tokens in given if tokens is not None]
    if not found:
        raise ValueError("The model needs input_ids or inputs_embeds.")
    return found[0]


def _part(places: Tensor, batch: int, value: Any) -> Any:
    """An argument for some of the documents: their rows, if it has one row per document."""
    if isinstance(value, Tensor) and value.dim() and len(value) == batch:
        return value[places]
    return {name: _part(places, batch, item) for name, item in value.items()} if isinstance(value, dict) else value


def _merged(outputs: list[Any], back: Tensor) -> Any:
    """The outputs of all passes as one, with the documents in their original order."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return _together(outputs)[back]
    if isinstance(first, Mapping):
        if any(output.keys() != first.keys() for output in outputs):
            raise _cannot_be_one(", ".join(sorted(set().union(*outputs) - set.intersection(*map(set, outputs)))))
        return type(first)(**{name: _merged_entry(name, outputs, back) for name in first})
    return tuple(_merged_entry(place, outputs, back) for place in range(len(first)))


def _merged_entry(name: Any, outputs: list[Any], back: Tensor) -> Any:
    entries = [output[name] for output in outputs]
    if isinstance(entries[0], Tensor):
        return _together(entries)[back]
    if entries[0] is None:  # in a tuple, for what a model lacks, such as a pooler
        return None
    merged = []
    for layer in zip(*entries, strict=True):  # states or attentions of all layers
        if any(each.shape[1:] != layer[0].shape[1:] for each in layer):
            raise _cannot_be_one(name)
        merged.append(torch.cat(layer)[back])
    return tuple(merged)


def _together(parts: list[Tensor]) -> Tensor:
    """Parts of a batch joined; missing classes get -inf, which softmax turns into zero."""
    widest = max(part.shape[-1] for part in parts)
    return torch.cat(
        [
            part if part.shape[-1] == widest else F.pad(part, (0, widest - part.shape[-1]), value=-torch.inf)
            for part in parts
        ]
    )


def _cannot_be_one(what: Any) -> ValueError:
    return ValueError(
        f"The adapters' outputs differ in shape ({what}), so they cannot be one tensor for all documents; call the "
        "model once for each adapter."
    )

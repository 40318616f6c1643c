"""Parameter counts of the prefix, the head and the other parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn

from prefixprop.backbones import find_backbone
from prefixprop.tuners.layer import PrefixLayer


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a model by kind; percentages are of the backbone."""

    backbone: int
    prefix: int
    alpha: int
    head: int
    rest: int
    trainable: int
    gates: int = 0
    lora: int = 0

    def percent(self, part: str) -> float:
        """`part` (such as 'prefix') in percent of the backbone."""
        return 100 * getattr(self, part) / self.backbone

    def __str__(self) -> str:
        parts = ("backbone", "prefix", "gates", "alpha", "lora", "head", "rest", "trainable")
        return "\n".join(f"{part:<10}{getattr(self, part):>14,}{self.percent(part):>11.4f} %" for part in parts)


def count_parameters(model: nn.Module) -> ParameterCount:
    """Count the parameters of a model, with or without an adapter.

    - backbone: the pretrained encoder, without anything that was added to it;
    - prefix: the prefix of the active adapter, as it is saved;
    - gates: its gates, if it has some;
    - alpha: its trained weight of the kernel part (Eq. 3), if it has one;
    - lora: the LoRA weights of the active adapter, with a prefix or alone;
    - head: what is on top of the encoder, such as a classifier;
    - rest: everything else that was added: inactive adapters, a reparameterisation network.

    `trainable` is what an optimizer trains of all these. Where peft trains a copy of a module, the frozen original is
    not counted.
    """
    layers = [module for module in model.modules() if isinstance(module, PrefixLayer) and module.is_active()]
    prefix = {id(weight): weight for weight in (layer.prefixes[layer.active_name()].weight for layer in layers)}
    gates = {id(weight) for layer in layers for weight in layer.active_gates()}
    alpha = {id(weight) for layer in layers for weight in layer.active_alpha()}
    lora = {id(parameter) for parameter in _active_lora(model)}
    added = {id(parameter) for parameter in _adapter_parameters(model)}
    originals = {id(parameter) for parameter in _originals(model)}
    encoder = {id(parameter) for parameter in find_backbone(model).module.parameters()}
    kinds = (("gates", gates), ("alpha", alpha), ("lora", lora), ("rest", added), ("backbone", encoder))
    totals = {"head": 0, "trainable": 0} | {kind: 0 for kind, _ in kinds}
    for parameter in model.parameters():
        if parameter.requires_grad:
            totals["trainable"] += parameter.numel()
        if id(parameter) in prefix or id(parameter) in originals:
            continue
        part = next((kind for kind, members in kinds if id(parameter) in members), "head")
        totals[part] += parameter.numel()
    return ParameterCount(prefix=sum(weight.numel() for weight in prefix.values()), **totals)


def _adapter_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            for name in module.adapter_layer_names:
                yield from getattr(module, name).parameters()


def _active_lora(model: nn.Module) -> Iterator[nn.Parameter]:
    for module in model.modules():
        if isinstance(module, LoraLayer) and not module.disable_adapters:
            names = [f".{name}." for name in module.active_adapters]
            for key, parameter in module.named_parameters():
                if any(name in f".{key}." for name in names) and not key.startswith("base_layer."):
                    yield parameter


def _originals(model: nn.Module) -> Iterator[nn.Parameter]:
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            yield from module.original_module.parameters()

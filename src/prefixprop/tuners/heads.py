"""The heads of several adapters: each document gets its own, and they may have different numbers of classes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn

from prefixprop.tuners.owners import Owners


def own_heads(owners: Owners, _: Any, wrapper: Any, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """What peft's wrapper of a head returns where each document has its own.

    peft's own way is for single linear layers only.
    """
    parts = rows[owners.by_adapter].split([len(own) for own in owners.places.values()])
    saved = dict(wrapper.modules_to_save.items())
    outputs = [
        saved.get(name, wrapper.original_module)(part, *args, **kwargs)
        for name, part in zip(owners.places, parts, strict=True)
    ]
    return together(outputs)[owners.back]


def together(parts: list[Tensor]) -> Tensor:
    """Parts of a batch one after the other; where one has fewer classes, -inf, which softmax makes zero."""
    widest = max(part.shape[-1] for part in parts)
    return torch.cat(
        [
            part if part.shape[-1] == widest else F.pad(part, (0, widest - part.shape[-1]), value=-torch.inf)
            for part in parts
        ]
    )


def classes_of(model: nn.Module, adapter_name: str) -> int | None:
    """How many classes the head of an adapter has; None if it has no head of its own."""
    heads = [part for part in model.modules() if isinstance(part, ModulesToSaveWrapper)]
    own = [head.modules_to_save[adapter_name] for head in heads if adapter_name in head.modules_to_save]
    linears = [part for head in own for part in head.modules() if isinstance(part, nn.Linear)]
    return linears[-1].out_features if linears else None


@torch.no_grad()
def fit_heads(model: nn.Module, adapter_name: str, state_dict: dict[str, Tensor]) -> None:
    """Give the heads of an adapter as many classes as it was saved with; peft made them like the model's own."""
    for path, wrapper in model.named_modules():
        if not isinstance(wrapper, ModulesToSaveWrapper) or adapter_name not in wrapper.modules_to_save:
            continue
        head = f"{path}.modules_to_save.{adapter_name}"
        for name, linear in wrapper.modules_to_save[adapter_name].named_modules(prefix=head):
            saved = state_dict.get(f"{name}.weight")
            if isinstance(linear, nn.Linear) and saved is not None and saved.shape[1:] == linear.weight.shape[1:]:
                _resize(linear, len(saved))


def _resize(linear: nn.Linear, classes: int) -> None:
    if linear.out_features == classes:
        return
    linear.out_features = classes
    for name, parameter in list(linear.named_parameters()):
        empty = parameter.new_empty(classes, *parameter.shape[1:])
        setattr(linear, name, nn.Parameter(empty, parameter.requires_grad))

"""Which encoders prefixes can be put on, one file per family."""

from __future__ import annotations

from torch import nn

from prefixprop.backbones.base import Backbone
from prefixprop.backbones.bert import BertBackbone, RobertaBackbone
from prefixprop.backbones.longformer import LongformerBackbone
from prefixprop.backbones.modernbert import ModernBertBackbone

FAMILIES: tuple[type[Backbone], ...] = (LongformerBackbone, RobertaBackbone, BertBackbone, ModernBertBackbone)
SUPPORTED_MODEL_TYPES = tuple(sorted(name for family in FAMILIES for name in family.model_types))


def find_backbone(model: nn.Module) -> Backbone:
    """The encoder inside `model`, bare or under any head."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or not (hasattr(module, "embeddings") and _has_layers(module)):
            continue
        for family in FAMILIES:
            if getattr(config, "model_type", None) in family.model_types:
                if getattr(config, "is_decoder", False):
                    raise ValueError("Prefix methods here are for encoders; load the model with is_decoder=False.")
                return family(module, model)
    model_type = getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__
    raise ValueError(
        f"prefixprop cannot put prefixes on a {model_type!r} model; use one of these model types: "
        f"{', '.join(SUPPORTED_MODEL_TYPES)}."
    )


def _has_layers(module: nn.Module) -> bool:
    return hasattr(module, "encoder") or hasattr(module, "layers")


__all__ = ["FAMILIES", "SUPPORTED_MODEL_TYPES", "Backbone", "find_backbone"]

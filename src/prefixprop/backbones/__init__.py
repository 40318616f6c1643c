"""The encoders that prefixes can be put on, one file per family."""

from __future__ import annotations

from torch import nn

from prefixprop.backbones.base import Backbone, FamilyFacts
from prefixprop.backbones.bert import BertBackbone, RobertaBackbone
from prefixprop.backbones.longformer import LongformerBackbone
from prefixprop.backbones.modernbert import ModernBertBackbone

# By `config.model_type`. Add an entry for another family.
FAMILIES: dict[str, type[Backbone]] = {
    "longformer": LongformerBackbone,
    "roberta": RobertaBackbone,
    "xlm-roberta": RobertaBackbone,
    "camembert": RobertaBackbone,
    "data2vec-text": RobertaBackbone,
    "roberta-prelayernorm": RobertaBackbone,
    "bert": BertBackbone,
    "electra": BertBackbone,
    "ernie": BertBackbone,
    "modernbert": ModernBertBackbone,
}


def family_of(model_type: str) -> type[FamilyFacts]:
    """What is known about models with this `config.model_type`; the defaults for a family that is not supported."""
    return FAMILIES.get(model_type, FamilyFacts)


def family_in(model: nn.Module) -> type[FamilyFacts]:
    """Like `family_of`, for the encoder inside `model`, with or without a head."""
    return next((found for module in model.modules() if (found := _family(module)) is not None), FamilyFacts)


def find_backbone(model: nn.Module) -> Backbone:
    """The encoder inside `model`, bare or under any head."""
    for module in model.modules():
        family, has_layers = _family(module), hasattr(module, "encoder") or hasattr(module, "layers")
        if family is None or not (has_layers and hasattr(module, "embeddings")):
            continue
        if getattr(module.config, "is_decoder", False):
            raise ValueError("Prefix methods here are for encoders; load the model with is_decoder=False.")
        return family(module, model)
    model_type = getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__
    raise ValueError(
        f"prefixprop cannot put prefixes on a {model_type!r} model; use one of these model types: "
        f"{', '.join(sorted(FAMILIES))}."
    )


def _family(module: nn.Module) -> type[Backbone] | None:
    return FAMILIES.get(getattr(getattr(module, "config", None), "model_type", ""))


__all__ = ["FAMILIES", "Backbone", "FamilyFacts", "family_in", "family_of", "find_backbone"]

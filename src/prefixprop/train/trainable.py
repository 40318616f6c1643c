"""What a method trains of a model, and how that is stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from prefixprop.attention import install
from prefixprop.backbones import family_in
from prefixprop.settings.methods import ADAPTER, HEAD, HEAD_FILE, MODEL
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import kind_of


def build_trainable(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    """The model that is trained: `base`, with a new head, as the method of the settings changes and freezes it."""
    model = _trainable(base, settings)
    if settings.attention_backend != "huggingface" and family_in(base).has_fast_attention:
        install(model, settings.attention_backend)
    elif settings.attention_backend not in ("auto", "huggingface"):
        raise ValueError(
            f"--attention-backend: {settings.attention_backend} is for Longformer and ModernBERT, and this model is "
            f"a {base.config.model_type}; leave it at auto."
        )
    return model


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything that is trained, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_trained(model: Any, settings: RunSettings, folder: Path) -> None:
    """Store what was trained in `folder`, as safetensors."""
    kind = settings.method_row.trains
    if kind == ADAPTER:
        # Prefix methods never change the embeddings, and looking for a change would ask the hub.
        model.save_pretrained(str(folder), save_embedding_layers=False)
    elif kind == MODEL:
        model.save_pretrained(str(folder))
    else:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in trained_tensors(model).items()}
        save_file(tensors, folder / HEAD_FILE, metadata={"trained": json.dumps(sorted(tensors))})


def _trainable(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    method = settings.method_row
    if method.is_mix:  # readers stand beside the frozen model
        return base.requires_grad_(False)
    if method.trains == MODEL:
        return base.requires_grad_(True)
    if method.trains == HEAD:
        kind_of(settings).freeze_encoder(base)
        return base
    if "lora_targets" in method.options:
        settings = replace(settings, lora_targets=_lora_targets(base, settings))
    return kind_of(settings).adapt(base, method.peft_config(settings))


def _lora_targets(base: PreTrainedModel, settings: RunSettings) -> tuple[str, ...]:
    """The names of the layers that LoRA changes: the family's, unless they are given."""
    layers = {name.rpartition(".")[2] for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    targets = family_in(base).lora_targets if settings.lora_targets is None else settings.lora_targets
    lacking = [target for target in targets if target not in layers]
    if lacking:
        raise ValueError(
            f"--lora-targets: this {base.config.model_type} has no layers named {', '.join(lacking)}; it has "
            f"{', '.join(sorted(layers))}."
        )
    return targets

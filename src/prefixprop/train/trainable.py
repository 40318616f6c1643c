"""What a method trains of a model, and how that is stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from peft import PeftConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from prefixprop.attention import install
from prefixprop.backbones import family_in
from prefixprop.data import add_special_tokens
from prefixprop.models import CandidateScorer, adapt_candidate_scorer
from prefixprop.models.base_model import BaseModel
from prefixprop.settings.methods import ADAPTER, HEAD, HEAD_FILE, MODEL
from prefixprop.settings.run_settings import RunSettings


def build_trainable(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    """The model that is trained: `base` as the method of the settings changes and freezes it."""
    model = _trainable(base, settings)
    if settings.attention_backend != "huggingface" and family_in(base).has_fast_attention:
        install(model, settings.attention_backend)
    elif settings.attention_backend not in ("auto", "huggingface"):
        raise ValueError(
            f"--attention-backend: {settings.attention_backend} is for Longformer and ModernBERT, and this model is "
            f"a {base.config.model_type}; leave it at auto."
        )
    return model


def with_new_head(base: BaseModel, label_names: tuple[str, ...] | None, settings: RunSettings) -> PreTrainedModel:
    """The base model with a new head for these labels; without labels, one that scores candidates of questions."""
    if label_names is None:
        return base.candidate_scorer(add_special_tokens(base.tokenizer), settings.chunk_reduction)
    return base.classifier(label_names)


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
    if method.trains == MODEL:
        return base.requires_grad_(True)
    if method.trains == HEAD:
        if isinstance(base, CandidateScorer):
            base.freeze_encoder()
        else:
            base.base_model.requires_grad_(False)
        return base
    if "lora_targets" in method.options:
        settings = replace(settings, lora_targets=_lora_targets(base, settings))
    return _adapted(base, method.peft_config(settings))


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


def _adapted(base: PreTrainedModel, config: PeftConfig) -> PeftModel:
    if isinstance(base, CandidateScorer):
        return adapt_candidate_scorer(base, config)
    config.task_type = TaskType.SEQ_CLS
    # peft trains `classifier` by itself; ModernBERT has more between the encoder and that.
    parts = [
        name for name, module in base.named_children() if module is not base.base_model and list(module.parameters())
    ]
    config.modules_to_save = [name for name in parts if name != "classifier"] or None
    return get_peft_model(base, config)

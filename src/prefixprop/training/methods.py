"""What each method trains of a model, and how the trained part is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from prefixprop.attention import install
from prefixprop.backbones import family_in
from prefixprop.config import PrefixPropagationConfig, PrefixTuningConfig
from prefixprop.models import CandidateScorer, adapt_candidate_scorer
from prefixprop.training.settings import RunSettings

ADAPTER_FOLDER, MODEL_FOLDER, HEAD_FOLDER = "adapter", "model", "head"
HEAD_FILE = "head.safetensors"


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    Attributes:
        summary: What is trained, in a few words.
        adapt: Makes the trainable model of a base model.
        folder: Where in a run directory the trained part is stored.
        save: Stores it in that folder.
    """

    summary: str
    adapt: Callable[[PreTrainedModel, RunSettings], nn.Module]
    folder: str
    save: Callable[[Any, Path], None]


def build_trainable(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    """The model that is trained: `base` as the method of the settings changes and freezes it."""
    model = METHODS[settings.method].adapt(base, settings)
    if settings.attention_backend != "huggingface" and family_in(base).has_fast_attention:
        install(model, settings.attention_backend)
    elif settings.attention_backend not in ("auto", "huggingface"):
        raise ValueError(
            f"--attention-backend: {settings.attention_backend} computes Longformer's attention, and this model is a "
            f"{base.config.model_type}; leave it at auto."
        )
    return model


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything that is trained, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def _prefix_propagation(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    return _adapted(base, PrefixPropagationConfig(pooling=settings.pooling, **_prefix_options(settings)))


def _prefix_tuning(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    return _adapted(base, PrefixTuningConfig(**_prefix_options(settings)))


def _prefix_options(settings: RunSettings) -> dict[str, Any]:
    names = (
        "num_virtual_tokens",
        "layout",
        "prefix_dropout",
        "init",
        "reparameterize",
        "kernel",
        "alpha",
        "alpha_mode",
    )
    return {name: getattr(settings, name) for name in names}


def _lora(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    layers = {name.rpartition(".")[2] for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    targets = family_in(base).lora_targets if settings.lora_targets is None else settings.lora_targets
    if lacking := [target for target in targets if target not in layers]:
        raise ValueError(
            f"--lora-targets: this {base.config.model_type} has no layers named {', '.join(lacking)}; it has "
            f"{', '.join(sorted(layers))}."
        )
    return _adapted(
        base,
        LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            lora_dropout=settings.lora_dropout,
            target_modules=list(targets),
        ),
    )


def _fine_tuning(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    return base.requires_grad_(True)


def _head_only(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    if isinstance(base, CandidateScorer):
        base.freeze_encoder()
    else:
        base.base_model.requires_grad_(False)
    return base


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


def _save_adapter(model: PeftModel, folder: Path) -> None:
    # Prefix methods never change the embeddings, and looking for a change would ask the hub.
    model.save_pretrained(str(folder), save_embedding_layers=False)


def _save_model(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(str(folder))


def _save_head(model: nn.Module, folder: Path) -> None:
    tensors = {name: tensor.cpu().contiguous() for name, tensor in trained_tensors(model).items()}
    save_file(tensors, folder / HEAD_FILE, metadata={"trained": json.dumps(sorted(tensors))})


METHODS: dict[str, Method] = {
    "prefix-propagation": Method(
        "rows put in front of the text, with a trained vector added to them at every layer (Eq. 1), and the head",
        _prefix_propagation, ADAPTER_FOLDER, _save_adapter,
    ),
    "prefix-tuning": Method(
        "keys and values put in front of those of every layer (Eq. 2), and the head",
        _prefix_tuning, ADAPTER_FOLDER, _save_adapter,
    ),
    "fine-tuning": Method("the whole model", _fine_tuning, MODEL_FOLDER, _save_model),
    "head-only": Method("the head alone, on a frozen encoder", _head_only, HEAD_FOLDER, _save_head),
    "lora": Method(
        "low-rank changes of the attention projections, and the head", _lora, ADAPTER_FOLDER, _save_adapter
    ),
}  # fmt: skip

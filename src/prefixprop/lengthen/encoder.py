"""The encoder that is trained: a lengthened model with a masked-language-model head, and its teacher."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerBase

from prefixprop.attention import install
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.models.base_model import BaseModel, load_base_model, load_pretrained
from prefixprop.models.embedded import EmbeddedModel
from prefixprop.models.lengthen import lengthen

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_PROJECTIONS = ("query", "key", "value")


@dataclass(frozen=True)
class LongEncoder:
    """A Longformer to be trained, with what belongs to it.

    Attributes:
        model: A `LongformerForMaskedLM` with the fast attention. It trains without dropout, as few passes over much
            text do not overfit.
        teacher: The original encoder, if [CLS] is taught.
        tokenizer: The original's, for longer texts.
        original_length: The longest text that the original reads, in tokens.
        has_new_head: Whether the original had no masked-language-model head.
        dropout: The dropout of the original's config, which the saved encoder gets again.
    """

    model: Any
    teacher: nn.Module | None
    tokenizer: PreTrainedTokenizerBase
    original_length: int
    has_new_head: bool
    dropout: dict[str, float]

    def save(self, folder: Path) -> None:
        """A folder as `from_pretrained` reads it."""
        model = self.model
        _set_global_projections(model, copy.deepcopy)
        for name, value in self.dropout.items():
            setattr(model.config, name, value)
        model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))

    @torch.no_grad()
    def start_new_head(self, counts: NDArray[np.int64]) -> None:
        """Start a new head with the frequencies of tokens, which it would learn first, and with logits of usual size.

        An encoder that never had a head may have embeddings of any scale.
        """
        head = self.model.lm_head
        frequency = torch.from_numpy(counts).double().add(1.0)
        head.bias.copy_((frequency / frequency.sum()).log())
        head.layer_norm.weight.fill_(1 / float(self.model.get_input_embeddings().weight.norm(dim=1).mean()))


def build(settings: LengthenSettings) -> LongEncoder:
    """Load the original, lengthen it, and choose which weights are trained."""
    original, base, has_new_head, dropout = _load(settings.model)
    tokenizer = base.tokenizer
    if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None or tokenizer.mask_token_id is None:
        raise ValueError(
            f"{settings.model}: its tokenizer has no [CLS], [SEP] or mask token, and masked language modelling needs "
            "all three."
        )
    model: Any = lengthen(original, settings.max_length, settings.attention_window)
    tokenizer.model_max_length = settings.max_length
    teacher = None
    if settings.teach_cls:
        teacher = original.base_model.eval().requires_grad_(False)
    # During training, global tokens share the projections of all others; `save` copies them.
    _set_global_projections(model, lambda projection: projection)
    model.requires_grad_(True)
    if settings.freeze_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    install(model)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return LongEncoder(model.train(), teacher, tokenizer, base.limit, has_new_head, dropout)


def _set_global_projections(model: Any, of_local: Callable[[nn.Module], nn.Module]) -> None:
    for layer in model.longformer.encoder.layer:
        attention = layer.attention.self
        for name in _PROJECTIONS:
            setattr(attention, f"{name}_global", of_local(getattr(attention, name)))


def _load(name: str) -> tuple[Any, BaseModel, bool, dict[str, float]]:
    """The original with a masked-language-model head, whether that is new, and its usual dropout."""
    base = load_base_model(name, dropout=0.0)
    if isinstance(base.source, EmbeddedModel):
        return base.source("MASKED_LM", **base.overrides), base, True, dict.fromkeys(_DROPOUTS, 0.1)  # RoBERTa's
    config = load_pretrained(AutoConfig, base.source)
    dropout = {field: getattr(config, field) for field in _DROPOUTS if hasattr(config, field)}
    options = base.loading | {"output_loading_info": True, "dtype": torch.float32}
    original, info = load_pretrained(AutoModelForMaskedLM, base.source, **options, **base.overrides)
    lacking = sorted(key for key in info["missing_keys"] if key.startswith(f"{original.base_model_prefix}."))
    if lacking:
        raise ValueError(f"{name}: weights of the encoder are missing: {', '.join(lacking[:3])}.")
    return original, base, bool(info["missing_keys"]), dropout

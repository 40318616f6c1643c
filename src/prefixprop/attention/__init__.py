"""Longformer's and ModernBERT's attention, computed block by block for any sequence length.

`install` puts it into Hugging Face's models, and `uninstall` takes it out again.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import LongformerForSequenceClassification, LongformerModel, ModernBertModel

from prefixprop.attention.backends import check_backend
from prefixprop.attention.longformer import LongformerPatch
from prefixprop.attention.modernbert import ModernBertPatch
from prefixprop.attention.patch import EncoderPatch
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.sliding_window import longformer_self_attention
from prefixprop.choices import BACKENDS

PATCHES: dict[type[nn.Module], type[EncoderPatch]] = {
    LongformerModel: LongformerPatch,
    ModernBertModel: ModernBertPatch,
}


def install(model: nn.Module, backend: str = "auto") -> None:
    """Compute the attention of every Longformer and ModernBERT in `model` with `backend`.

    Weights, calls and results stay the same. The backends are `triton` (NVIDIA GPUs since Ampere) and `sdpa` (plain
    PyTorch, everywhere); `auto` takes the first one that works on the model's device. `uninstall` puts Hugging Face's
    attention back. Under `torch.compile` the encoder runs as it is, behind a graph break.
    """
    check_backend(backend)
    for encoder, patch in _encoders(model):
        patch.of(encoder).backend = backend
    for head in model.modules():
        if isinstance(head, LongformerForSequenceClassification):
            LongformerPatch.of(head.longformer).serve(head)


def uninstall(model: nn.Module) -> None:
    """Put Hugging Face's attention back; a prefix method still uses the fast one while its adapter is active."""
    for encoder, patch in _encoders(model):
        attention = patch.of(encoder)
        attention.backend = None
        attention.release_if_unused()


def _encoders(model: nn.Module) -> list[tuple[Any, type[EncoderPatch]]]:
    found = [
        (module, patch) for module in model.modules() for kind, patch in PATCHES.items() if isinstance(module, kind)
    ]
    if not found:
        name = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise ValueError(
            f"The fast attention is for Longformer and ModernBERT models; this is a {name!r} model and needs none."
        )
    return found


__all__ = ["BACKENDS", "AttentionPattern", "install", "longformer_self_attention", "uninstall"]

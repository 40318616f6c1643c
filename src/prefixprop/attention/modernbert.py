"""The replaced forwards of Hugging Face's ModernBERT, for layers with a window and layers with full attention.

Hugging Face's own attention runs if attention weights are requested, or if a mask hides more than padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from prefixprop.attention.patch import EncoderPatch, Undo, replace_forward, without_compiler
from prefixprop.attention.pattern import AttentionPattern

ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")  # of the model, in their order
KINDS = ("full_attention", "sliding_attention")  # of layers


class ModernBertPatch(EncoderPatch):
    """The replaced forwards of a ModernBERT."""

    def replace(self) -> list[Undo]:
        undo = [replace_forward(self.encoder, partial(_model_forward, self))]
        for index, layer in enumerate(self.encoder.layers):
            undo += [
                replace_forward(layer, partial(_layer_forward, self, index)),
                replace_forward(layer.attn, partial(_attention_forward, self, index)),
            ]
        return undo


def is_fast_with(given: dict[str, Any], config: Any) -> bool:
    """Whether the fast attention supports the arguments that the model is called with."""
    weights, mask = given.get("output_attentions"), given.get("attention_mask")
    if config.output_attentions if weights is None else weights:
        return False
    return mask is None or (isinstance(mask, Tensor) and mask.dim() == 2)


@without_compiler
def _model_forward(
    patch: ModernBertPatch, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any
) -> Any:
    """`ModernBertModel.forward`, with a pattern for its layers in place of masks of length × length."""
    given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
    tokens = given.get("input_ids") if given.get("inputs_embeds") is None else given["inputs_embeds"]
    if tokens is None or not patch.is_on() or not is_fast_with(given, model.config):
        return original(*args, **kwargs)
    mask, source = given.get("attention_mask"), patch.active_source()
    is_masked = tokens.new_zeros(tokens.shape[:2], dtype=bool) if mask is None else ~mask.to(tokens.device).bool()
    front = 0 if source is None else source.virtual_tokens()  # the embeddings are about to get these
    outside = 0 if source is None else source.rows_outside_softmax()
    pattern = AttentionPattern.with_rows_in_front(F.pad(is_masked, (front, 0)), front, outside, mask is None)
    pattern.backend = patch.start(tokens)
    # The model hands what it does not know on to its layers.
    return original(**given | {"attention_mask": dict.fromkeys(KINDS), "pattern": pattern})


def _layer_forward(
    patch: ModernBertPatch,
    index: int,
    original: Callable[..., Tensor],
    layer: Any,
    hidden_states: Tensor,
    attention_mask: Any = None,
    position_embeddings: Any = None,
    pattern: AttentionPattern | None = None,
    **others: Any,
) -> Tensor:
    """`ModernBertEncoderLayer.forward`, as one operation where the backend has one."""
    others |= {"attention_mask": attention_mask, "position_embeddings": position_embeddings}
    if pattern is None:
        return original(hidden_states, **others)
    with patch.computing(index, hidden_states, pattern) as (_, prefix):
        as_one = pattern.backend.modernbert_layer
        if as_one is not None:
            window = window_of(layer.attn.config, index)
            output = as_one(layer, patch.plans, hidden_states, pattern, position_embeddings, window, prefix)
            if output is not None:
                return output
        attended, _ = layer.attn(layer.attn_norm(hidden_states), **others)
        return pattern.backend.geglu(layer, hidden_states, attended)


def _attention_forward(
    patch: ModernBertPatch,
    index: int,
    original: Callable[..., tuple[Tensor, Tensor | None]],
    module: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Any = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """`ModernBertAttention.forward`: the fast one in a layer that has a pattern."""
    if patch.layer is None:
        return original(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask, **others
        )
    pattern, prefix = patch.layer
    rows = pattern.backend.modernbert_attention(
        module.Wqkv(hidden_states),
        position_embeddings,
        module.config.num_attention_heads,
        window_of(module.config, index),
        pattern,
        *prefix,
        module.attention_dropout if module.training else 0.0,
    )
    return module.out_drop(module.Wo(rows)), None


def window_of(config: Any, index: int) -> int | None:
    """How many neighbours on either side the rows of a layer see; None for all."""
    return config.sliding_window if config.layer_types[index] == "sliding_attention" else None

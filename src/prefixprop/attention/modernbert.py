"""The fast attention in Hugging Face's ModernBERT, in layers with a window and in layers with full attention.

Hugging Face's own attention runs where attention weights are asked for, or where a mask is more than padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from prefixprop.attention.backends import Backend, choose
from prefixprop.attention.patch import EncoderPatch, Undo, replace_forward, without_compiler
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import prefixed_keys

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

    def backend_for(self, pattern: AttentionPattern, states: Tensor) -> Backend:
        """The backend that computes this pass."""
        if pattern.backend is None:
            pattern.backend = choose(self.backend, states.device)
        return pattern.backend


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
    outside = front if source is not None and source.prefix_part(0) is not None else 0
    pattern = AttentionPattern.with_rows_in_front(F.pad(is_masked, (front, 0)), front, outside, mask is None)
    given["attention_mask"] = dict.fromkeys(KINDS, pattern)
    return original(**given)


def _layer_forward(
    patch: ModernBertPatch,
    index: int,
    original: Callable[..., Tensor],
    layer: Any,
    hidden_states: Tensor,
    attention_mask: Any = None,
    position_embeddings: Any = None,
    **others: Any,
) -> Tensor:
    """`ModernBertEncoderLayer.forward`, as one operation where the backend has one."""
    others |= {"attention_mask": attention_mask, "position_embeddings": position_embeddings}
    if not isinstance(attention_mask, AttentionPattern):
        return original(hidden_states, **others)
    backend = patch.backend_for(attention_mask, hidden_states)
    if backend.rotary_layer is not None:
        attend = partial(_attend, patch, index, layer.attn, attention_mask, position_embeddings)
        output = backend.rotary_layer(layer, hidden_states, attend)
        if output is not None:
            return output
    attended, _ = layer.attn(layer.attn_norm(hidden_states), **others)
    return backend.geglu(layer, hidden_states, attended)


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
    """`ModernBertAttention.forward`: the fast one where the model was given a pattern."""
    if not isinstance(attention_mask, AttentionPattern):
        return original(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask, **others
        )
    rows = _attend(patch, index, module, attention_mask, position_embeddings, module.Wqkv(hidden_states))
    return module.out_drop(module.Wo(rows)), None


def _attend(
    patch: ModernBertPatch, index: int, module: Any, pattern: AttentionPattern, rope: Any, projected: Tensor
) -> Tensor:
    """The rows of a layer's attention, from queries, keys and values."""
    source = patch.active_source()
    kind = module.config.layer_types[index]
    return patch.backend_for(pattern, projected).rotary_attention(
        projected,
        rope,
        module.config.num_attention_heads,
        module.config.sliding_window if kind == "sliding_attention" else None,
        pattern,
        prefixed_keys(source, index, projected),
        None if source is None else source.prefix_part(index),
        None if source is None else source.fused_part(index),
        module.attention_dropout if module.training else 0.0,
    )

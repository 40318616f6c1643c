"""The replaced forwards of Hugging Face's ModernBERT, and what they compute in plain PyTorch.

There are layers with a window and layers with full attention. Hugging Face's own attention runs if attention weights
are requested, or if a mask hides more than padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prefixprop.attention.patch import EncoderPatch, Undo, replace_forward, without_compiler
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import FusedPart, PrefixedKeys, PrefixPart, outside_softmax
from prefixprop.attention.sliding_window import attend_to_all, local_rows, wide

ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")  # of the model, in their order
KINDS = ("full_attention", "sliding_attention")  # of layers
Angles = tuple[Tensor, Tensor]  # cosines and sines, [batch or 1, length, head size] each


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


# --- the attention in plain PyTorch ---------------------------------------------------------------------------------
# Rows in front of the tokens see every row and are seen by every row, like Longformer's global tokens, but without
# projections of their own. Windows are computed as for Longformer (see `sliding_window`). Rows that see everything
# use PyTorch's fused attention with one bias per key. There is no mask of length × length.


def rotary_attention(
    projected: Tensor,
    angles: Angles,
    heads: int,
    reach: int | None,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    fused_part: FusedPart | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention's rows [batch, length, width] from queries, keys and values, `projected` [batch, length, 3 width].

    Rows see `reach` neighbours on either side, or all rows if it is None. The pattern knows its rows in front. Prefix
    keys are not rotated. With a `prefix_part` no row has the prefix in its softmax, and the part is added (Eq. 3);
    `fused_part` describes the same part for backends that compute it themselves.
    """
    asking, value = projected.unflatten(-1, (3, heads, -1)).split([2, 1], dim=2)  # [batch, length, ., heads, size]
    query, key = (rows.transpose(1, 2) for rows in _ApplyRope.apply(asking, *angles).unbind(2))
    value = value.squeeze(2).transpose(1, 2)
    in_softmax = prefix if prefix_part is None else None
    if reach is None:
        output, _ = attend_to_all(query, key, value, pattern, in_softmax, dropout)
    else:
        output, _ = local_rows(query, key, value, reach, pattern, in_softmax, dropout)
        if count := pattern.front_rows:
            front, _ = attend_to_all(query[:, :, :count], key, value, pattern, in_softmax, dropout)
            output = torch.cat([front, output[:, :, count:]], dim=2)
    if prefix_part is not None:
        output = output + prefix_part(query, *outside_softmax(key, value, prefix, pattern), dropout)
    return output.transpose(1, 2).flatten(2)


def geglu(layer: Any, states: Tensor, attended: Tensor) -> Tensor:
    """The second half of a ModernBertEncoderLayer: residual, norm and gated feed-forward after its attention."""
    states = states + attended
    return states + layer.mlp(layer.mlp_norm(states))


class _ApplyRope(torch.autograd.Function):
    """Rotary positions of rows [batch, length, ., heads, size], four times as fast as Hugging Face's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _apply_rope(rows, cosine, sine)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _apply_rope(gradient, cosine, -sine), None, None


def _apply_rope(rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (i, i + size / 2) of a row by its angle."""
    half = rows.shape[-1] // 2
    exact, sine = rows.to(wide(rows.dtype)), sine[:, :, None, None, :half]
    turned = exact * cosine[:, :, None, None]
    turned[..., :half].addcmul_(exact[..., half:], sine, value=-1)
    turned[..., half:].addcmul_(exact[..., :half], sine)
    return turned.to(rows.dtype)

"""Eq. 1, 2 and 3 written out densely in float64: slow, obvious, and independent of the package's own code."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

# (layer, number of prefix keys, q, k, v, what each row sees) -> attention rows
Split = Callable[[int, int, Tensor, Tensor, Tensor, Tensor], Tensor]


def hidden_states(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    propagation: Tensor | None = None,
    key_values: Tensor | None = None,
    layout: str = "paper",
    split: Split | None = None,
) -> tuple[Tensor, Tensor]:
    """Last layer's (prefix rows, token rows) in float64.

    `split` computes the attention of Eq. 3 where it is given.
    """
    backbone: Any = copy.deepcopy(model.base_model).double()
    if backbone.config.model_type == "modernbert":
        return _modernbert(backbone, inputs, propagation, key_values, layout, split)
    is_longformer = backbone.config.model_type == "longformer"
    prefix = propagation if propagation is not None else key_values
    assert prefix is not None
    prefix = prefix.double()
    length = prefix.shape[-2]
    states = _embed(backbone, inputs, length if layout == "reference" else 0)
    batch, tokens = states.shape[:2]
    seen = inputs.get("attention_mask", torch.ones(batch, tokens)).bool()
    everywhere = inputs.get("global_attention_mask", torch.zeros(batch, tokens)).bool() & seen
    if propagation is not None:
        rows = prefix[0].expand(batch, -1, -1)
        if layout == "reference":
            rows = rows + _empty_words(backbone, length)
        states = torch.cat([rows, states], dim=1)
        front = torch.ones(batch, length, dtype=torch.bool)
        seen, everywhere = torch.cat([front, seen], 1), torch.cat([front, everywhere], 1)
    for index, layer in enumerate(backbone.encoder.layer):
        if propagation is not None and index > 0:
            states = torch.cat([states[:, :length] + prefix[index], states[:, length:]], dim=1)
        extra = prefix[index] if key_values is not None else None
        in_front = length if split is not None else 0
        part = None if split is None else partial(split, index, in_front)
        states = _layer(layer, states, seen, everywhere if is_longformer else None, extra, part)
    final = getattr(backbone, "LayerNorm", None)  # the pre-norm relative normalises at the end
    kept = 0 if propagation is None else length
    rows, states = states[:, :kept], states[:, kept:]
    return rows, states if final is None else final(states)


def _modernbert(
    backbone: Any,
    inputs: dict[str, Tensor],
    propagation: Tensor | None,
    key_values: Tensor | None,
    layout: str,
    split: Split | None,
) -> tuple[Tensor, Tensor]:
    """Pre-norm layers, rotary positions, and windows that see the prefix and are seen by it."""
    states = backbone.embeddings(input_ids=inputs["input_ids"])
    batch, tokens = states.shape[:2]
    seen = inputs.get("attention_mask", torch.ones(batch, tokens)).bool()
    positions = inputs.get("position_ids", torch.arange(tokens)[None]).expand(batch, -1)
    place = torch.arange(tokens)
    kept = 0
    if propagation is not None:
        kept = propagation.shape[1]
        empty = backbone.embeddings.norm(torch.zeros(1, states.shape[-1], dtype=states.dtype))
        rows = propagation[0] if layout == "paper" else propagation[0] + empty
        states = torch.cat([rows.double().expand(batch, -1, -1), states], dim=1)
        seen = torch.cat([seen.new_ones(batch, kept), seen], dim=1)
        own = torch.zeros(kept) if layout == "paper" else torch.arange(kept) - kept
        positions = torch.cat([own.expand(batch, -1), positions], dim=1)
    near = torch.ones(kept + tokens, kept + tokens, dtype=torch.bool)
    near[kept:, kept:] = (place[:, None] - place[None]).abs() <= backbone.config.local_attention // 2
    for index, layer in enumerate(backbone.layers):
        if propagation is not None and index > 0:
            states = torch.cat([states[:, :kept] + propagation[index].double(), states[:, kept:]], dim=1)
        kind = backbone.config.layer_types[index]
        theta = backbone.config.rope_parameters[kind]["rope_theta"]
        visible = seen[:, None, :].expand(-1, kept + tokens, -1)
        visible = visible & near if kind == "sliding_attention" else visible
        heads = backbone.config.num_attention_heads
        q, k, v = layer.attn.Wqkv(layer.attn_norm(states)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = _rotate(q, positions, theta), _rotate(k, positions, theta)
        in_front = kept
        if key_values is not None:
            keys, values = key_values[index].double()[:, None].expand(-1, batch, -1, -1, -1)
            k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
            in_front = keys.shape[2]
            visible = torch.cat([visible.new_ones(batch, tokens, in_front), visible], dim=2)
        attended = softmax_attention(q, k, v, visible) if split is None else split(index, in_front, q, k, v, visible)
        states = states + layer.attn.Wo(attended.transpose(1, 2).flatten(2))
        states = states + layer.mlp(layer.mlp_norm(states))
    return states[:, :kept], backbone.final_norm(states[:, kept:])


def _rotate(vectors: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn each pair (i, i + d/2) of a vector by its position times theta^(-2i/d)."""
    half = vectors.shape[-1] // 2
    angle = positions[:, None, :, None].double() * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    one, two = vectors[..., :half], vectors[..., half:]
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], dim=-1)


def _embed(backbone: Any, inputs: dict[str, Tensor], shift: int) -> Tensor:
    embeddings = backbone.embeddings
    if shift:
        table = embeddings.position_embeddings
        table.weight = torch.nn.Parameter(torch.cat([table.weight[shift:], table.weight[:shift]]))
    states = embeddings(input_ids=inputs["input_ids"], position_ids=inputs.get("position_ids"))
    projection = getattr(backbone, "embeddings_project", None)
    return states if projection is None else projection(states)


def _empty_words(backbone: Any, length: int) -> Tensor:
    embeddings = backbone.embeddings
    # _embed() rolled the table by `length`, so positions 0 to length-1 are at its end.
    rows = embeddings.position_embeddings.weight[-length:] + embeddings.token_type_embeddings.weight[0]
    rows = embeddings.LayerNorm(rows)
    projection = getattr(backbone, "embeddings_project", None)
    return rows if projection is None else projection(rows)


def _layer(
    layer: Any, states: Tensor, seen: Tensor, everywhere: Tensor | None, extra: Tensor | None, part: Any
) -> Tensor:
    pre_norm = getattr(layer.attention, "LayerNorm", None)
    entering = states if pre_norm is None else pre_norm(states)
    attended = attention(layer.attention.self, entering, seen, everywhere, extra, part)
    attended = layer.attention.output(attended, states)
    return layer.output(layer.intermediate(attended), attended)


def attention(
    module: Any, states: Tensor, seen: Tensor, everywhere: Tensor | None, extra: Tensor | None, part: Any
) -> Tensor:
    """Attention rows of one layer; `extra` [2, heads, j, d] stands in front of the keys and values (Eq. 2)."""
    length = states.shape[1]
    can_see = seen[:, None, :].expand(-1, length, -1)
    plain = (module.query, module.key, module.value)
    if everywhere is None:
        return _attend(*plain, states, can_see, extra, part)
    place = torch.arange(length)
    near = (place[:, None] - place[None]).abs() <= module.one_sided_attn_window_size
    local = _attend(*plain, states, can_see & (near | everywhere[:, None, :]), extra, part)
    twins = (module.query_global, module.key_global, module.value_global)
    return torch.where(everywhere[..., None], _attend(*twins, states, can_see, extra, part), local)


def _attend(
    query: Any, key: Any, value: Any, states: Tensor, visible: Tensor, extra: Tensor | None, part: Any
) -> Tensor:
    heads = extra.shape[1] if extra is not None else 4
    q, k, v = (linear(states).unflatten(-1, (heads, -1)).transpose(1, 2) for linear in (query, key, value))
    if extra is not None:
        keys, values = extra[:, None].expand(-1, len(states), -1, -1, -1)
        k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        visible = torch.cat([visible.new_ones(*visible.shape[:2], extra.shape[2]), visible], dim=2)
    rows = softmax_attention(q, k, v, visible) if part is None else part(q, k, v, visible)
    return rows.transpose(1, 2).flatten(2)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~visible[:, None], -1e30).softmax(dim=-1) @ v


def softmax_share(q: Tensor, k: Tensor, visible: Tensor, count: int) -> Tensor:
    """λ: how much softmax over all keys gives the first `count` of them."""
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~visible[:, None], -1e30)
    return scores.softmax(dim=-1)[..., :count].sum(dim=-1, keepdim=True)

"""ModernBERT: rotary positions, and layers of full attention between layers with a sliding window.

Virtual tokens see every token and are seen by every token, in layers with a window too. They have no position: their
keys and queries are not rotated, as at position 0, and neither are the keys of prefix-tuning. In layout `reference`
they stand in front of the text, at positions -j to -1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from prefixprop.attention.modernbert import ARGUMENTS, ModernBertPatch, geglu, is_fast_with
from prefixprop.attention.patch import Undo, replace_forward
from prefixprop.attention.prefix import NO_PREFIX, PrefixedKeys, PrefixSource, with_prefix
from prefixprop.attention.reading import LONGEST, read_keys
from prefixprop.backbones.base import Backbone, Text, without_prefix
from prefixprop.backbones.dense_attention import (
    attend,
    mask_with_keys,
    mask_with_rows,
    split_attention,
    with_first_rows_everywhere,
)


class ModernBertBackbone(Backbone):
    hidden_dropout_fields: ClassVar[tuple[str, ...]] = ("embedding_dropout", "mlp_dropout", "classifier_dropout")
    attention_dropout_fields: ClassVar[tuple[str, ...]] = ("attention_dropout",)
    lora_targets: ClassVar[tuple[str, ...]] = ("Wqkv",)
    has_fast_attention: ClassVar[bool] = True

    @property
    def word_embeddings(self) -> Any:
        return self.embeddings.tok_embeddings

    @property
    def host(self) -> Any:
        return self.embeddings

    @property
    def layers(self) -> list[Any]:
        return list(self.module.layers)

    @property
    def head_takes_mean(self) -> bool:
        return self.config.classifier_pooling == "mean"

    @property
    def max_tokens(self) -> int:
        return self.config.max_position_embeddings

    def embed_empty_words(self, count: int) -> Tensor:
        embeddings = self.embeddings
        return embeddings.drop(embeddings.norm(self.word_embeddings.weight.new_zeros(count, self.config.hidden_size)))

    def attach(self, source: PrefixSource) -> list[Undo]:
        attention = ModernBertPatch.of(self.module)
        around = [
            replace_forward(layer.attn, partial(_prefixed_attention, attention, source, index))
            for index, layer in enumerate(self.layers)
        ]
        return [*super().attach(source), attention.listen_to(source), *around]

    def attach_rows(self, source: PrefixSource) -> list[Undo]:
        enter, leave = partial(self._make_room, source), partial(_take_rows_off, source)
        return [
            self.module.register_forward_pre_hook(enter, with_kwargs=True).remove,
            self.embeddings.register_forward_hook(partial(_put_rows_in_front, source)).remove,
            self.module.final_norm.register_forward_pre_hook(leave).remove,
        ]

    def _make_room(self, source: PrefixSource, _: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """The model's arguments with positions for the virtual tokens, and with masks where Hugging Face's
        attention will run; the embeddings put the tokens themselves in front.
        """
        count = source.virtual_tokens()
        given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
        tokens = given.get("input_ids") if given.get("inputs_embeds") is None else given["inputs_embeds"]
        if not count or tokens is None:
            return None
        length, device = tokens.shape[1], tokens.device
        positions = given.get("position_ids")
        if positions is None:
            positions = torch.arange(length, device=device)[None]
        reserved = source.reserved_positions()
        own = torch.arange(-reserved, 0, device=device) if reserved else torch.zeros(count, device=device)
        own = own.to(positions.dtype).expand(positions.shape[0], -1)
        given["position_ids"] = torch.cat([own, positions], dim=1)
        if not is_fast_with(given, self.config):
            given["attention_mask"] = self._masks(given.get("attention_mask"), tokens.shape[0], count, length)
        return (), given

    def _masks(self, mask: Any, batch: int, count: int, length: int) -> dict[str, Any]:
        """The masks by kind of layer, as the model makes them, with `count` rows in front for all."""
        _check_implementation(self.config)
        if isinstance(mask, dict):
            return {kind: mask_with_rows(own, count) for kind, own in mask.items()}
        if mask is not None:
            mask = F.pad(mask, (count, 0), value=1) if mask.dim() == 2 else mask_with_rows(mask, count)
        # Of the states, the functions ask for shape, type and device.
        states = self.word_embeddings.weight.new_empty(1, 1, 1).expand(batch, count + length, 1)
        of = {"config": self.config, "inputs_embeds": states, "attention_mask": mask}
        return {
            "full_attention": create_bidirectional_mask(**of),
            "sliding_attention": with_first_rows_everywhere(create_bidirectional_sliding_window_mask(**of), count),
        }

    def read_layer(self, index: int, rows: Tensor, text: Text, readers: int = 1, first_only: bool = False) -> Tensor:
        layer, states = self.layers[index], text.states[index]
        attention, positions, backend = layer.attn, text.positions, self.backend(rows.device)
        if positions is None:
            positions = torch.arange(states.shape[1], device=states.device)[None]
        dropout = attention.attention_dropout if attention.training else 0.0
        length, pattern = rows.shape[1] // readers, text.pattern
        asking = rows[:, ::length] if first_only else rows
        if backend.attend_to_text is not None and length <= LONGEST:
            qkv, of_text = (attention.Wqkv(layer.attn_norm(each)) for each in (rows, states))
            heads, rope = (
                self.config.num_attention_heads,
                self.module.rotary_emb(states, positions, layer.attention_type),
            )
            attended = backend.attend_to_text(qkv, of_text, pattern, heads, readers, first_only, dropout, rope)
        else:
            _, key, value = self._rotated(layer, states, positions)
            query = self._rotated(layer, asking, positions.new_zeros(1, asking.shape[1]))[0]
            _, *own = self._rotated(layer, rows, positions.new_zeros(1, rows.shape[1]))
            attended = read_keys(query, key, value, pattern, PrefixedKeys(*own), readers, dropout)
            attended = attended.transpose(1, 2).flatten(2)
        leave = backend.modernbert_leave
        if leave is not None and (left := leave(layer, attended, asking)) is not None:
            return left
        return geglu(layer, asking, attention.out_drop(attention.Wo(attended)))

    def _rotated(self, layer: Any, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a layer, [batch, heads, rows, size] each."""
        projected = layer.attn.Wqkv(layer.attn_norm(states)).unflatten(-1, (3, -1, layer.attn.head_dim))
        query, key, value = projected.transpose(1, 3).unbind(dim=2)
        rope = self.module.rotary_emb(states, positions, layer.attention_type)
        return *apply_rotary_pos_emb(query, key, *rope), value

    def final_norm(self, rows: Tensor) -> Tensor:
        return self.module.final_norm(rows)

    def classify(self, head: Any, pooled: Tensor) -> Tensor:
        return head.classifier(head.head(pooled))

    def project(self, layer: Any, states: Tensor) -> Tensor:
        return layer.attn.Wqkv(layer.attn_norm(states))[..., states.shape[-1] :]


def _put_rows_in_front(source: PrefixSource, _: nn.Module, args: tuple, embedded: Tensor) -> Tensor | None:
    rows = source.first_rows(embedded)
    return None if rows is None else torch.cat([rows, embedded], dim=1)


def _take_rows_off(source: PrefixSource, _: nn.Module, args: tuple) -> tuple | None:
    count = source.virtual_tokens()
    return (without_prefix(args[0], count, source.pools_prefix()),) if count else None


def _prefixed_attention(
    attention: ModernBertPatch,
    source: PrefixSource,
    index: int,
    original: Callable[..., tuple[Tensor, ...]],
    module: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Any = None,
    **others: Any,
) -> tuple[Tensor, ...]:
    """The forward of a layer's self-attention, with what an active prefix changes where it is Hugging Face's."""
    is_fast = attention.layer is not None
    prefix, part, _ = NO_PREFIX if is_fast else source.at(index, hidden_states.shape[0])
    if prefix is None and part is None:
        return original(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask, **others
        )
    _check_implementation(module.config)
    projected = module.Wqkv(hidden_states).unflatten(-1, (3, -1, module.head_dim)).transpose(1, 3)
    query, key, value = projected.unbind(dim=2)
    query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
    dropout = module.attention_dropout if module.training else 0.0
    if part is not None:
        rows, weights = split_attention(
            module, part, prefix, source.virtual_tokens(), (query, key, value), attention_mask, dropout, **others
        )
    else:
        assert prefix is not None
        key, value = (with_prefix(front, own) for front, own in zip(prefix, (key, value), strict=True))
        attention_mask = mask_with_keys(attention_mask, prefix[0].shape[2])
        rows, weights = attend(module, query, key, value, attention_mask, dropout, **others)
    return module.out_drop(module.Wo(rows.flatten(2))), weights


def _check_implementation(config: Any) -> None:
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(
            f"On ModernBERT, prefix methods do not work with attn_implementation={config._attn_implementation!r}, "
            "whose windows would not see the prefix; load the model with 'sdpa' or 'eager'."
        )

"""BERT, RoBERTa and the models built like them: full attention, any attention implementation of transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prefixprop.backbones.base import Backbone, PrefixSource, RobertaPositions, Undo


class BertBackbone(Backbone):
    """Positions from 0, as in BERT."""

    model_types: ClassVar[frozenset[str]] = frozenset({"bert", "electra", "ernie"})

    @property
    def first_position(self) -> int:
        return 0

    def _count_positions(self, input_ids: Tensor) -> int:
        return input_ids.shape[1]

    def prepend(self, rows: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden_states, *rest = args
        kwargs = dict(kwargs, attention_mask=_mask_with_rows(kwargs.get("attention_mask"), rows.shape[1]))
        if "position_ids" in kwargs:
            # Only flash attention reads them this far down, to find packed sequences.
            kwargs["position_ids"] = None
        return (torch.cat([rows, hidden_states], dim=1), *rest), kwargs

    def keep_tokens(self, output: Any, prefix_rows: int, pooled_row: bool) -> Any:
        states = output.last_hidden_state
        tokens = states[:, prefix_rows:]
        output.last_hidden_state = torch.cat([states[:, :1], tokens], dim=1) if pooled_row else tokens
        return output

    def finish(self, output: Any, pooled_row: bool, drop_pooled_row: bool) -> Any:
        # transformers records states and attentions inside the encoder, where the prefix still is.
        tokens = output[0].shape[1] - int(pooled_row)
        if isinstance(output, tuple):
            first, *others = output
            return (
                first[:, -tokens:] if drop_pooled_row else first,
                *(_last_tokens(value, tokens) for value in others),
            )
        for name in ("hidden_states", "attentions"):
            if output.get(name) is not None:
                output[name] = _last_tokens(output[name], tokens)
        if drop_pooled_row:
            output.last_hidden_state = output.last_hidden_state[:, -tokens:]
        return output

    def attach(self, source: PrefixSource) -> list[Undo]:
        undo = []
        for index, layer in enumerate(self.layers):
            hook = partial(_see_prefix, source, index)
            undo.append(layer.attention.self.register_forward_pre_hook(hook, with_kwargs=True).remove)
        return undo

    def token_key_values(self, input_ids: Tensor) -> Tensor:
        outputs = record_outputs(
            [module for layer in self.layers for module in (layer.attention.self.key, layer.attention.self.value)],
            lambda: self.module(input_ids=input_ids),
        )
        return stack_key_values([output[0] for output in outputs], self.config.num_attention_heads)


class RobertaBackbone(RobertaPositions, BertBackbone):
    """Positions from behind the padding index, as in RoBERTa."""

    model_types: ClassVar[frozenset[str]] = frozenset(
        {"roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm"}
    )


class PrefixKeyValues:
    """Stands where a decoder's cache would: puts the prefix in front of a layer's keys and values (Eq. 2)."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        batch = keys.shape[0]
        return (
            torch.cat([self.keys.to(keys.dtype).expand(batch, -1, -1, -1), keys], dim=2),
            torch.cat([self.values.to(values.dtype).expand(batch, -1, -1, -1), values], dim=2),
        )


def _see_prefix(
    source: PrefixSource, index: int, attention: nn.Module, args: tuple, kwargs: dict
) -> tuple[tuple, dict] | None:
    prefix = source.key_values(index, args[0].shape[0])
    if prefix is None:
        return None
    keys, values = prefix
    mask = _mask_with_keys(kwargs.get("attention_mask"), keys.shape[2])
    return args, dict(kwargs, attention_mask=mask, past_key_values=PrefixKeyValues(keys, values))


def _mask_with_keys(mask: Any, count: int) -> Any:
    """The attention mask with `count` keys in front that every row sees."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise ValueError(
            "Prefix methods do not work with attn_implementation='flex_attention'; load the model with 'sdpa', "
            "'eager' or flash attention."
        )
    # Boolean masks say what is seen, integer ones (flash attention) likewise, float ones are added to the scores.
    return F.pad(mask, (count, 0), value=0.0 if mask.is_floating_point() else 1)


def _mask_with_rows(mask: Any, count: int) -> Any:
    """The attention mask with `count` rows in front that see, and are seen by, every row."""
    mask = _mask_with_keys(mask, count)
    if mask is None or mask.dim() < 4:
        return mask
    # A prefix row sees each key that any row sees: all but the padding.
    seen = mask.amax(dim=2, keepdim=True) if mask.is_floating_point() else mask.any(dim=2, keepdim=True)
    return torch.cat([seen.expand(-1, -1, count, -1), mask], dim=2)


def _last_tokens(value: Any, tokens: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_last_tokens(item, tokens) for item in value)
    if isinstance(value, Tensor) and value.dim() == 3:
        return value[:, -tokens:]
    if isinstance(value, Tensor) and value.dim() == 4:
        return value[..., -tokens:, -tokens:]
    return value


def record_outputs(modules: list[nn.Module], run: Callable[[], Any]) -> list[Tensor]:
    """The outputs of `modules` during `run()`, in their order."""
    outputs: dict[int, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda _, __, output, place=place: outputs.update({place: output}))
        for place, module in enumerate(modules)
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return [outputs[place] for place in range(len(modules))]


def stack_key_values(projections: list[Tensor], heads: int) -> Tensor:
    """[j, hidden] keys and values, alternating over the layers, as [layers, 2, heads, j, head size]."""
    split = [rows.unflatten(-1, (heads, -1)).transpose(0, 1) for rows in projections]
    return torch.stack(split).unflatten(0, (-1, 2))

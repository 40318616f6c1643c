"""What a prefix method needs to know about an encoder of any family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from prefixprop.attention.backends import Backend, choose
from prefixprop.attention.patch import ATTRIBUTE, Undo
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import PrefixSource
from prefixprop.attention.reading import read_text


class FamilyFacts:
    """What is known about a family before a model is loaded; the defaults fit most encoders, supported or not.

    Attributes:
        hidden_dropout_fields: Config fields for the dropout of hidden states and of the head.
        attention_dropout_fields: Config fields for the dropout of attention weights.
        lora_targets: The layers that LoRA adapts by default.
        has_fast_attention: Whether `prefixprop.attention.install` works on it.
    """

    hidden_dropout_fields: ClassVar[tuple[str, ...]] = ("hidden_dropout_prob",)
    attention_dropout_fields: ClassVar[tuple[str, ...]] = ("attention_probs_dropout_prob",)
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "value")
    has_fast_attention: ClassVar[bool] = False

    @staticmethod
    def first_position_of(config: Any) -> int:
        """Position of the first real token."""
        return 0


class Text(NamedTuple):
    """A batch of documents as the frozen encoder sees them, for virtual tokens to read.

    Attributes:
        states: The input of every layer, [batch, tokens, hidden]; [1, tokens, hidden] if all are the same text.
        pattern: What of it is padding, or otherwise not to be read.
        positions: The tokens' positions, if the caller gave them.
    """

    states: tuple[Tensor, ...]
    pattern: AttentionPattern
    positions: Tensor | None = None


class Backbone(FamilyFacts, ABC):
    """Where prefixes enter and leave an encoder. It refers to the Hugging Face module and owns no weights."""

    def __init__(self, module: nn.Module, model: nn.Module) -> None:
        self.module: Any = module
        self.model: Any = model  # with its head; the same module if it has none

    @property
    def config(self) -> Any:
        return self.module.config

    @property
    def embeddings(self) -> Any:
        return self.module.embeddings

    @property
    @abstractmethod
    def word_embeddings(self) -> Any:
        """The table of word embeddings."""

    @property
    @abstractmethod
    def host(self) -> Any:
        """The module that carries the prefixes, as a child."""

    @property
    @abstractmethod
    def layers(self) -> list[Any]:
        """The layers, in order."""

    @property
    def has_pooler(self) -> bool:
        return getattr(self.module, "pooler", None) is not None

    @property
    def head_pools(self) -> bool:
        """Whether a head on the model pools for itself: it reads the first row."""
        return self.module is not self.model and not self.has_pooler

    @property
    def head_modules(self) -> dict[str, Any]:
        """The parts of a sequence classification model that are trained with a prefix, by name."""
        own = ((name, module) for name, module in self.model.named_children() if module is not self.model.base_model)
        return {name: module for name, module in own if any(True for _ in module.parameters())}

    @property
    def head_size(self) -> int:
        return self.config.hidden_size // self.config.num_attention_heads

    @property
    def head_takes_mean(self) -> bool:
        """Whether the head pools by the mean of all rows."""
        return False

    @property
    def first_position(self) -> int:
        """Position of the first real token."""
        return self.first_position_of(self.config)

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """How many tokens there are positions for."""

    def embed(self, input_ids: Tensor) -> Tensor:
        """The embedded sequence, as layer 1 sees it."""
        return self.embeddings(input_ids=input_ids)

    @abstractmethod
    def embed_empty_words(self, count: int) -> Tensor:
        """The embedding of an empty word at positions 0 to count-1, to which layout `reference` adds P(1)."""

    def attach(self, source: PrefixSource) -> list[Undo]:
        """Make every layer's attention use `source`, and remove the prefix from the output. Returns how to undo it.

        A family adds what its layers need.
        """
        return [self.module.register_forward_hook(partial(self._leave, source)).remove]

    def _leave(self, source: PrefixSource, _: nn.Module, args: tuple, output: Any) -> Any:
        if not source.is_active():
            return None
        pooled_row = source.pools_prefix()
        # A head that pools for itself reads the first row, so there the pooled row stays.
        return self.finish(output, pooled_row, drop_pooled_row=pooled_row and not self.head_pools)

    @abstractmethod
    def attach_rows(self, source: PrefixSource) -> list[Undo]:
        """Put the virtual tokens of `source` in front of the sequence, and remove them at the end."""

    def finish(self, output: Any, pooled_row: bool, drop_pooled_row: bool) -> Any:
        """The backbone's output with states and attentions of the real tokens only.

        Its last hidden state starts with the pooled prefix row if `pooled_row`.
        """
        # transformers records states and attentions inside the encoder, where the prefix still is.
        tokens = output[0].shape[1] - int(pooled_row)
        if isinstance(output, tuple):
            first, *others = output
            return (
                first[:, -tokens:] if drop_pooled_row else first,
                *(last_tokens(value, tokens) for value in others),
            )
        for name in ("hidden_states", "attentions"):
            if output.get(name) is not None:
                output[name] = last_tokens(output[name], tokens)
        if drop_pooled_row:
            output.last_hidden_state = output.last_hidden_state[:, -tokens:]
        return output

    def as_tuple(self, output: Any) -> tuple[Any, ...]:
        """The output as the encoder returns it with `return_dict=False`."""
        return output.to_tuple()

    @abstractmethod
    def read_layer(self, index: int, rows: Tensor, text: Text, readers: int = 1, first_only: bool = False) -> Tensor:
        """Virtual tokens [batch, readers * j, hidden] after a layer in which they see all of the text.

        Those of the same reader also see each other. `first_only` computes the first of each reader only.
        """

    def backend(self, device: torch.device) -> Backend:
        """What computes the attention of readers."""
        patch = getattr(self.module, ATTRIBUTE, None)
        return choose(None if patch is None else patch.backend, device)

    @abstractmethod
    def final_norm(self, rows: Tensor) -> Tensor:
        """Rows of the last layer as the model hands them out."""

    def classify(self, head: Any, pooled: Tensor) -> Tensor:
        """Logits of pooled rows [batch, hidden]; `head` has the parts of the model's head under their names."""
        rows = pooled[:, None]
        return head.classifier(self.module.pooler(rows) if self.has_pooler else rows)

    @contextmanager
    def layer_inputs(self) -> Iterator[list[Tensor]]:
        """A list to which the passes of this thread add the states that enter each layer.

        `output_hidden_states=True` would leave hooks on the layers, which cannot be pickled.
        """
        states, thread = [], get_ident()

        def record(_: nn.Module, args: tuple, kwargs: dict) -> None:
            if get_ident() == thread:
                states.append(args[0] if args else kwargs["hidden_states"])

        hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in self.layers]
        try:
            yield states
        finally:
            for hook in hooks:
                hook.remove()

    def token_key_values(self, input_ids: Tensor) -> Tensor:
        """Keys and values that the layers compute for `input_ids` [1, j]: [layers, 2, heads, j, head size]."""
        with self.layer_inputs() as states:
            self.module(input_ids=input_ids)
        shape, count = (2, self.config.num_attention_heads, self.head_size), input_ids.shape[1]
        # Hugging Face pads to whole windows.
        rows = [self.project(layer, own[:, :count])[0] for layer, own in zip(self.layers, states, strict=True)]
        return torch.stack([row.unflatten(-1, shape).permute(1, 2, 0, 3) for row in rows])

    @abstractmethod
    def project(self, layer: Any, states: Tensor) -> Tensor:
        """A layer's keys and values of local rows, [batch, tokens, 2 hidden], without positions."""


class EncoderBackbone(Backbone):
    """Embeddings with a table of positions, and an encoder: BERT and models built like it."""

    read_projections: ClassVar[tuple[str, str, str]] = ("query", "key", "value")  # of a token that sees all others

    @property
    def word_embeddings(self) -> Any:
        return self.embeddings.word_embeddings

    @property
    def encoder(self) -> Any:
        return self.module.encoder

    @property
    def host(self) -> Any:
        return self.encoder

    @property
    def layers(self) -> list[Any]:
        return list(self.encoder.layer)

    @property
    def max_tokens(self) -> int:
        return self.embeddings.position_embeddings.num_embeddings - self.first_position

    def embed(self, input_ids: Tensor) -> Tensor:
        return self._project(self.embeddings(input_ids=input_ids))

    def embed_empty_words(self, count: int) -> Tensor:
        embeddings = self.embeddings
        rows = embeddings.position_embeddings.weight[:count] + embeddings.token_type_embeddings.weight[0]
        return self._project(embeddings.dropout(embeddings.LayerNorm(rows)))

    def _project(self, embedded: Tensor) -> Tensor:
        # ELECTRA's embeddings may be narrower than its layers.
        projection = getattr(self.module, "embeddings_project", None)
        return embedded if projection is None else projection(embedded)

    def attach(self, source: PrefixSource) -> list[Undo]:
        check, shift = partial(self._check_length, source), partial(_shift, source)
        return [
            *super().attach(source),
            self.embeddings.register_forward_pre_hook(check, with_kwargs=True).remove,
            self.embeddings.position_embeddings.register_forward_pre_hook(shift).remove,
        ]

    def _check_length(self, source: PrefixSource, _: nn.Module, args: tuple, kwargs: dict) -> None:
        """Raise if a sequence needs more positions than there are besides those that the prefix takes.

        Reads values back from an accelerator only where the shape alone does not tell.
        """
        ids, positions = kwargs.get("input_ids"), kwargs.get("position_ids")
        tokens = kwargs.get("inputs_embeds") if ids is None else ids
        if tokens is None or not source.is_active():
            return
        reserved = source.reserved_positions()
        room = self.max_tokens - reserved
        if (positions is None and tokens.shape[1] <= room) or torch.compiler.is_compiling():
            return
        if positions is not None:
            needed = int(positions.max()) + 1 - self.first_position
        else:
            needed = tokens.shape[1] if ids is None else self._count_positions(ids)
        if needed > room:
            shift = f" ({reserved} of its positions go to the prefix in layout 'reference')" if reserved else ""
            raise ValueError(
                f"A sequence of {needed} tokens is too long: this {self.config.model_type} model reads at most "
                f"{room}{shift}; truncate with max_length={room}, or lengthen the model with "
                "prefixprop.models.lengthen."
            )

    @abstractmethod
    def _count_positions(self, input_ids: Tensor) -> int:
        """Positions that the model will give to `input_ids`."""

    def attach_rows(self, source: PrefixSource) -> list[Undo]:
        enter, leave = partial(self._enter_encoder, source), partial(self._leave_encoder, source)
        return [
            self.encoder.register_forward_pre_hook(enter, with_kwargs=True).remove,
            self.encoder.register_forward_hook(leave).remove,
        ]

    def _enter_encoder(
        self, source: PrefixSource, _: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        rows = source.first_rows(args[0])
        return None if rows is None else self.prepend(rows, args, kwargs)

    def _leave_encoder(self, source: PrefixSource, _: nn.Module, args: tuple, output: Any) -> Any:
        count = source.virtual_tokens()
        return self.keep_tokens(output, count, source.pools_prefix()) if count else None

    @abstractmethod
    def prepend(self, rows: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The encoder's arguments with `rows` [batch, j, hidden] in front of the sequence, visible to every row."""

    @abstractmethod
    def keep_tokens(self, output: Any, virtual_tokens: int, pooled_row: bool) -> Any:
        """The encoder's output without its virtual tokens; `pooled_row` keeps the first of them."""

    def read_layer(self, index: int, rows: Tensor, text: Text, readers: int = 1, first_only: bool = False) -> Tensor:
        layer, states = self.layers[index], text.states[index]
        attention, entering, backend = layer.attention, rows, self.backend(rows.device)
        if (norm := getattr(attention, "LayerNorm", None)) is not None:  # in layers that normalise first
            entering, states = norm(rows), norm(states)
        projections = [getattr(attention.self, name) for name in self.read_projections]
        dropout = getattr(attention.self.dropout, "p", attention.self.dropout)  # Longformer's is a number
        attended = read_text(
            entering,
            states,
            projections,
            text.pattern,
            self.config.num_attention_heads,
            readers,
            first_only,
            dropout if attention.self.training else 0.0,
            backend,
        )
        rows = rows[:, :: rows.shape[1] // readers] if first_only else rows
        leave = None if norm is not None else backend.longformer_leave
        if leave is not None and (left := leave(layer, attended, rows)) is not None:
            return left
        attended = attention.output(attended, rows)
        return layer.output(layer.intermediate(attended), attended)

    def final_norm(self, rows: Tensor) -> Tensor:
        norm = getattr(self.module, "LayerNorm", None)  # where layers normalise first
        return rows if norm is None else norm(rows)

    def project(self, layer: Any, states: Tensor) -> Tensor:
        norm, own = getattr(layer.attention, "LayerNorm", None), layer.attention.self
        states = states if norm is None else norm(states)
        return torch.cat([own.key(states), own.value(states)], dim=-1)


def _shift(source: PrefixSource, _: nn.Module, args: tuple) -> tuple | None:
    """Positions after those that the prefix takes."""
    count = source.reserved_positions()
    return (args[0] + count,) if count else None


def without_prefix(states: Tensor, virtual_tokens: int, pooled_row: bool) -> Tensor:
    """States without their virtual tokens, except the first if it is to be pooled."""
    tokens = states[:, virtual_tokens:]
    return torch.cat([states[:, :1], tokens], dim=1) if pooled_row else tokens


def last_tokens(value: Any, tokens: int) -> Any:
    if isinstance(value, tuple):
        return tuple(last_tokens(item, tokens) for item in value)
    if isinstance(value, Tensor) and value.dim() == 3:
        return value[:, -tokens:]
    if isinstance(value, Tensor) and value.dim() == 4:
        return value[..., -tokens:, -tokens:]
    return value


class RobertaPositions:
    """Positions counted over real tokens, starting behind the padding index."""

    embeddings: Any

    @staticmethod
    def first_position_of(config: Any) -> int:
        return (config.pad_token_id or 0) + 1

    def _count_positions(self, input_ids: Tensor) -> int:
        return int(input_ids.ne(self.embeddings.padding_idx).sum(dim=1).max())

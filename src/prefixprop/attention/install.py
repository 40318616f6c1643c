"""Puts the fast attention into Hugging Face's Longformer and takes it out again.

Two things ask for it: `install`, for good, and a prefix method, while its adapter is active. One object per encoder
serves both and decides at every forward pass; without either the forwards are Hugging Face's own to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn
from transformers.models.longformer.modeling_longformer import LongformerBaseModelOutput, LongformerEncoder

from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import PrefixedKeys, PrefixPart
from prefixprop.attention.sliding_window import longformer_self_attention

Undo = Callable[[], None]
BACKENDS = ("sdpa",)
ATTRIBUTE = "fast_attention"  # of an encoder


class PrefixSource(Protocol):
    """What attention asks of a prefix method while it runs."""

    def is_active(self) -> bool: ...

    def key_values(self, layer: int, batch: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values in front of a layer's own, [batch or 1, heads, j, head size] each, if any (Eq. 2)."""

    def prefix_rows(self) -> int:
        """How many rows in front of the sequence are the prefix (Eq. 1)."""

    def prefix_part(self, layer: int) -> PrefixPart | None:
        """What attention to the prefix becomes when it leaves the softmax (Eq. 3)."""


def install(model: nn.Module, backend: str = "auto") -> None:
    """Let every Longformer in `model` compute its attention with `backend`: same weights, same calls, same numbers.

    `auto` takes the best backend for the device. `uninstall` puts Hugging Face's back.
    """
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend={backend!r} is unknown; choose one of auto, {', '.join(BACKENDS)}.")
    for encoder in _encoders(model):
        FastAttention.of(encoder).backend = BACKENDS[0] if backend == "auto" else backend


def uninstall(model: nn.Module) -> None:
    """Put Hugging Face's attention back; a prefix method still uses the fast one while its adapter is active."""
    for encoder in _encoders(model):
        attention = FastAttention.of(encoder)
        attention.backend = None
        attention.release_if_unused()


class FastAttention:
    """What stands between a Longformer encoder and its attention."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.backend: str | None = None
        self.source: PrefixSource | None = None
        self._undo = [replace_forward(encoder, partial(_encoder_forward, self))]
        for index, layer in enumerate(encoder.layer):
            self._undo.append(replace_forward(layer.attention.self, partial(_attention_forward, self, index)))

    @classmethod
    def of(cls, encoder: Any) -> FastAttention:
        """The one of this encoder."""
        if getattr(encoder, ATTRIBUTE, None) is None:
            setattr(encoder, ATTRIBUTE, cls(encoder))
        return getattr(encoder, ATTRIBUTE)

    def is_on(self) -> bool:
        return self.backend is not None or self.active_source() is not None

    def active_source(self) -> PrefixSource | None:
        return self.source if self.source is not None and self.source.is_active() else None

    def listen_to(self, source: PrefixSource) -> Undo:
        self.source = source
        return self._stop_listening

    def _stop_listening(self) -> None:
        self.source = None
        self.release_if_unused()

    def release_if_unused(self) -> None:
        if self.backend is None and self.source is None:
            while self._undo:
                self._undo.pop()()
            delattr(self.encoder, ATTRIBUTE)


def _encoder_forward(
    fast: FastAttention,
    original: Callable[..., Any],
    encoder: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    padding_len: int = 0,
    output_attentions: bool = False,
    output_hidden_states: bool = False,
    **others: Any,
) -> Any:
    """`LongformerEncoder.forward`, with the pattern found once, and without the padding that only its own needs."""
    if not fast.is_on():
        flags = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        return original(hidden_states, attention_mask, padding_len=padding_len, **flags, **others)
    length = hidden_states.shape[1] - padding_len
    hidden_states, attention_mask = hidden_states[:, :length], attention_mask[:, :length]
    source = fast.active_source()
    hidden_rows = source.prefix_rows() if source is not None and source.prefix_part(0) is not None else 0
    pattern = AttentionPattern.from_mask(attention_mask, hidden_rows)

    states, local_weights, global_weights = [hidden_states], [], []
    for layer in encoder.layer:
        hidden_states, *weights = layer(hidden_states, attention_mask=pattern, output_attentions=output_attentions)
        states.append(hidden_states)
        if weights:  # as Hugging Face hands them out: [batch, heads, length, ...]
            local_weights.append(weights[0].transpose(1, 2))
            global_weights += [rows.transpose(2, 3) for rows in weights[1:]]
    return LongformerBaseModelOutput(
        last_hidden_state=hidden_states,
        hidden_states=tuple(states) if output_hidden_states else None,
        attentions=tuple(local_weights) if output_attentions else None,
        global_attentions=tuple(global_weights) or None,
    )


def _attention_forward(
    fast: FastAttention,
    index: int,
    original: Callable[..., tuple[Tensor, ...]],
    module: nn.Module,
    hidden_states: Tensor,
    attention_mask: Any = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, ...]:
    """`LongformerSelfAttention.forward`: the fast one where the encoder has found a pattern."""
    if not isinstance(attention_mask, AttentionPattern):
        return original(hidden_states, attention_mask=attention_mask, output_attentions=output_attentions, **others)
    source = fast.active_source()
    prefix = None if source is None else source.key_values(index, hidden_states.shape[0])
    return longformer_self_attention(
        module,
        hidden_states,
        attention_mask,
        prefix=None if prefix is None else PrefixedKeys(*prefix),
        prefix_part=None if source is None else source.prefix_part(index),
        output_attentions=output_attentions,
    )


def _encoders(model: nn.Module) -> list[Any]:
    found = [module for module in model.modules() if isinstance(module, LongformerEncoder)]
    if not found:
        name = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise ValueError(f"The fast attention is for Longformer models, and this is {name!r}; nothing to do here.")
    return found


def replace_forward(module: Any, replacement: Callable[..., Any]) -> Undo:
    """Let `replacement(original, module, ...)` stand for this one module's forward."""
    before = vars(module).get("forward")
    module.forward = partial(replacement, module.forward, module)
    # Not a closure: a deep copy of the model must undo its own change, not this model's.
    return partial(_restore_forward, module, before)


def _restore_forward(module: Any, before: Callable[..., Any] | None) -> None:
    if before is None:
        del module.forward
    else:
        module.forward = before

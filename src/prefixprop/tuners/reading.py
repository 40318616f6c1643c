"""Reading: prefix-propagation (Eq. 1) in which the text does not attend to the prefix.

    R(1) = P(1)
    R(l) = R(l) + P(l)                                  before layer l > 1
    R(l+1) = layer l of R(l), attending to cat(R(l), C(l))

C(l) is the text that enters layer l, as the frozen encoder computes it: without the prefix, dropout and gradients.
The virtual tokens see all of it, as global tokens do. The head reads the first of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from prefixprop.attention.patch import without_compiler
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.backbones.base import Backbone, Text
from prefixprop.tuners.layer import PrefixLayer, is_read_only


class PrefixRows(Protocol):
    """The virtual tokens of one prefix, or of several one after the other."""

    def layer(self, index: int, batch: int) -> Tensor:
        """Those of a layer, [batch or 1, rows, hidden]."""


def read(backbone: Backbone, prefix: PrefixRows, text: Text, readers: int = 1) -> Tensor:
    """The first virtual token of each of so many readers after all layers, [batch, readers, hidden].

    The others are not computed in the last layer, because nobody reads them there.
    """
    batch, last = len(text.pattern.is_masked), len(text.states) - 1
    rows = prefix.layer(0, batch).to(text.states[0].dtype).expand(batch, -1, -1)
    for index in range(last + 1):
        if index:
            rows = rows + prefix.layer(index, batch).to(rows.dtype)
        rows = backbone.read_layer(index, rows, text, readers, first_only=index == last)
    return backbone.final_norm(rows)


def text_to_read(backbone: Backbone, inputs: Mapping[str, Tensor]) -> Text:
    """A batch as the frozen model sees it, for readers that stand outside of the model.

    The last layer is not computed: readers see what enters it, and nobody sees what leaves it.
    """
    with backbone.layer_inputs() as states:
        stop = backbone.layers[-1].register_forward_pre_hook(_stop)
        try:
            with _frozen(backbone.module), contextlib.suppress(_LastLayer):
                backbone.model(**inputs)
        finally:
            stop.remove()
    length = inputs["input_ids"].shape[1]  # Hugging Face pads to whole windows
    return text_of([state[:, :length] for state in states], inputs.get("attention_mask"))


def text_of(states: Sequence[Tensor], attention_mask: Any, positions: Tensor | None = None) -> Text:
    """A batch from the states at the entry of every layer."""
    return Text(tuple(states), _padding(attention_mask, states[0]), positions)


class _LastLayer(Exception):
    """Raised where the last layer would be computed."""


def _stop(*_: Any) -> None:
    raise _LastLayer


@without_compiler
def reading_forward(
    prefixes: PrefixLayer, original: Callable[..., Any], encoder: nn.Module, *args: Any, **kwargs: Any
) -> Any:
    """The forward of an encoder: the text as without a prefix, then the virtual tokens that read it."""
    active = prefixes.active_prefix()
    if active is None or not is_read_only(active.config):
        return original(*args, **kwargs)
    backbone = prefixes.backbone
    with _frozen(encoder), backbone.layer_inputs() as states:
        output = original(*args, **kwargs | {"return_dict": True})
    mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    text = text_of(states, mask, kwargs.get("position_ids"))
    first = read(backbone, active.prefix, text)
    parts = {**output, "last_hidden_state": torch.cat([first, output.last_hidden_state], dim=1)}
    if backbone.has_pooler:
        parts["pooler_output"] = backbone.module.pooler(first)
    output = type(output)(**parts)
    as_asked = kwargs.get("return_dict")
    wants_names = backbone.config.return_dict if as_asked is None else as_asked
    return output if wants_names else backbone.as_tuple(output)


@contextmanager
def _frozen(encoder: nn.Module) -> Iterator[None]:
    """Without gradients, and with every module of the encoder in evaluation mode.

    Checkpointed layers are therefore not computed again either: they keep nothing for backward.
    """
    training = [module for module in encoder.modules() if module.training]
    device = next(encoder.parameters()).device.type
    # Autocast must not keep weights that it converts here, such as a trained pooler's: they would have no gradient.
    autocast = torch.autocast(device, enabled=torch.is_autocast_enabled(device), cache_enabled=False)
    for module in training:
        vars(module)["training"] = False
    try:
        with torch.no_grad(), autocast:
            yield
    finally:
        for module in training:
            vars(module)["training"] = True


def _padding(mask: Any, states: Tensor) -> AttentionPattern:
    """What of the text is padding, according to the caller's mask."""
    if mask is None:
        is_masked = states.new_zeros(states.shape[:2], dtype=torch.bool)
    elif isinstance(mask, Tensor) and mask.shape == states.shape[:2]:
        is_masked = ~mask.to(states.device).bool()
    else:
        shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"A prefix that only reads needs an attention_mask of shape {list(states.shape[:2])}, one number for "
            f"each token, not {shape}."
        )
    unpadded = states.shape[1] if mask is None else None
    return AttentionPattern(is_masked, torch.zeros_like(is_masked), unpadded_rows=unpadded)

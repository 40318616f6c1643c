"""The replaced forwards of Hugging Face's Longformer: any length, one pattern for all layers, fused layers.

A classification head reads one row of the last layer. If nothing else reads that layer, only this row is computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LongformerForSequenceClassification
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutput,
    LongformerBaseModelOutputWithPooling,
    LongformerClassificationHead,
)

from prefixprop.attention.patch import (
    EncoderPatch,
    Undo,
    has_hooks,
    is_hook_of,
    replace_forward,
    without_compiler,
)
from prefixprop.attention.pattern import ALL_ROWS, AttentionPattern, GlobalTokens
from prefixprop.attention.prefix import LayerPrefix
from prefixprop.attention.sliding_window import attend_globally


class LongformerPatch(EncoderPatch):
    """The replaced forwards of a Longformer."""

    def __init__(self, longformer: Any) -> None:
        self.longformer = longformer
        self.reads_cls: set[int] = set()  # threads in which a head runs that reads [CLS] only
        self._serves_head = False
        super().__init__(longformer)

    def replace(self) -> list[Undo]:
        undo = [
            replace_forward(self.longformer, partial(_model_forward, self)),
            replace_forward(self.longformer.encoder, partial(_encoder_forward, self)),
        ]
        for index, layer in enumerate(self.longformer.encoder.layer):
            undo += [
                replace_forward(layer, partial(_layer_forward, self, index)),
                replace_forward(layer.attention.self, partial(_attention_forward, self)),
                replace_forward(layer.attention.output, partial(_output_forward, self)),
                replace_forward(layer.output, partial(_output_forward, self)),
            ]
        return undo

    def serve(self, head: Any) -> None:
        """Have the head tell what it reads. Not a subclass with a forward of its own, which may do something else."""
        if not self._serves_head and is_hugging_face_head(head):
            self._serves_head = True
            before, after = partial(_tell_what_head_reads, self), partial(_head_is_done, self)
            self._undo += [
                head.register_forward_pre_hook(before, with_kwargs=True).remove,
                head.register_forward_hook(after, always_call=True).remove,
            ]


@without_compiler
def _model_forward(
    patch: LongformerPatch,
    original: Callable[..., Any],
    longformer: Any,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    global_attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    output_attentions: bool | None = None,
    output_hidden_states: bool | None = None,
    return_dict: bool | None = None,
    **others: Any,
) -> Any:
    """`LongformerModel.forward` for any length, without padding and without reading values back from the GPU."""
    if not patch.is_on() or (input_ids is None) == (inputs_embeds is None):
        return original(
            input_ids, attention_mask, global_attention_mask, token_type_ids, position_ids, inputs_embeds,
            output_attentions, output_hidden_states, return_dict, **others,
        )  # fmt: skip
    embedded = longformer.embeddings(
        input_ids=input_ids, position_ids=position_ids, token_type_ids=token_type_ids, inputs_embeds=inputs_embeds
    )
    # In the model's type from the start: boolean and unsigned masks do not support subtraction.
    dtype = embedded.dtype
    seen = embedded.new_ones(embedded.shape[:2]) if attention_mask is None else attention_mask.to(dtype)
    if global_attention_mask is not None:
        seen = seen * (global_attention_mask.to(dtype) + 1)
    # As the encoder has it: negative for padding (0), zero for local (1), positive for global tokens (2).
    mask = (seen - 1) * torch.finfo(dtype).max

    config = longformer.config
    flags = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
    flags = {name: getattr(config, name) if value is None else value for name, value in flags.items()}
    source = patch.active_source()
    row = None
    if get_ident() in patch.reads_cls and not any(flags.values()) and not has_other_readers(longformer, source):
        row = 0 if source is None or source.pools_prefix() else source.virtual_tokens()
    known = {
        "cls_row": row,
        "grad_rows": grad_rows(longformer, source, embedded),
        # A 2 in the attention mask makes a token global too.
        "front_rows": 0 if global_attention_mask is None and attention_mask is None else None,
    }
    states = longformer.encoder(embedded, attention_mask=mask, padding_len=0, return_dict=True, **known, **flags)
    pooled = None if longformer.pooler is None else longformer.pooler(states[0])
    output = LongformerBaseModelOutputWithPooling(
        last_hidden_state=states.last_hidden_state,
        pooler_output=pooled,
        hidden_states=states.hidden_states,
        attentions=states.attentions,
        global_attentions=states.global_attentions,
    )
    if return_dict if return_dict is not None else config.return_dict:
        return output
    return (output.last_hidden_state, pooled, *states.to_tuple()[1:])


def _encoder_forward(
    patch: LongformerPatch,
    original: Callable[..., Any],
    encoder: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    padding_len: int = 0,
    output_attentions: bool = False,
    output_hidden_states: bool = False,
    cls_row: int | None = None,
    grad_rows: int | None = None,
    front_rows: int | None = None,
    **others: Any,
) -> Any:
    """`LongformerEncoder.forward`, with the pattern computed once, and without padding to whole windows."""
    if not patch.is_on():
        patch.running = None
        flags = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        return original(hidden_states, attention_mask, padding_len=padding_len, **flags, **others)
    length = hidden_states.shape[1] - padding_len
    hidden_states, attention_mask = hidden_states[:, :length], attention_mask[:, :length]
    source = patch.active_source()
    if source is not None and source.virtual_tokens():
        front_rows = None
    outside = 0 if source is None else source.rows_outside_softmax()
    # Hugging Face's mask is negative for padding, 0 for local and positive for global tokens.
    is_masked, is_global = attention_mask < 0, attention_mask > 0
    known = (outside, cls_row, grad_rows, patch.start(hidden_states), front_rows)
    pattern = AttentionPattern(is_masked, is_global, *known)

    states, local_weights, global_weights = [hidden_states], [], []
    for layer in encoder.layer:
        hidden_states, *weights = layer(hidden_states, pattern=pattern, output_attentions=output_attentions)
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


def _layer_forward(
    patch: LongformerPatch,
    index: int,
    original: Callable[..., tuple[Tensor, ...]],
    layer: Any,
    hidden_states: Tensor,
    *args: Any,
    pattern: AttentionPattern | None = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, ...]:
    """`LongformerLayer.forward`, as one operation where the backend has one; Hugging Face's without a pattern."""
    if pattern is None:
        return original(hidden_states, *args, output_attentions=output_attentions, **others)
    with patch.computing(index, hidden_states, pattern) as (_, prefix):
        if layer.chunk_size_feed_forward > 0:
            return original(hidden_states, output_attentions=output_attentions)
        if pattern.cls_row is not None and index == len(patch.longformer.encoder.layer) - 1:
            return (cls_only_layer(layer, hidden_states, pattern, prefix),)
        as_one = pattern.backend.longformer_layer
        if as_one is not None and not output_attentions:
            needed = ALL_ROWS if index or pattern.grad_rows is None else pattern.grad_rows
            output = as_one(layer, patch.plans, hidden_states, pattern, prefix, needed)
            if output is not None:
                return (output,)
        # Hugging Face's forward inspects a signature at every call.
        attended, *weights = layer.attention(hidden_states, output_attentions=output_attentions)
        return (layer.output(layer.intermediate(attended), attended), *weights)


def _attention_forward(
    patch: LongformerPatch,
    original: Callable[..., tuple[Tensor, ...]],
    module: nn.Module,
    hidden_states: Tensor,
    *args: Any,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, ...]:
    """`LongformerSelfAttention.forward`: the fast one in a layer that has a pattern."""
    if patch.layer is None:
        return original(hidden_states, *args, output_attentions=output_attentions, **others)
    pattern, prefix = patch.layer
    return pattern.backend.longformer_attention(
        module, hidden_states, pattern, prefix.key_values, prefix.part, output_attentions
    )


def _output_forward(
    patch: LongformerPatch,
    original: Callable[..., Tensor],
    module: nn.Module,
    hidden_states: Tensor,
    input_tensor: Tensor,
) -> Tensor:
    """What follows attention and feed-forward: dense, dropout, residual, LayerNorm."""
    if patch.running is None or patch.running.residual_output is None:
        return original(hidden_states, input_tensor)
    return patch.running.residual_output(original, module, hidden_states, input_tensor)


def _tell_what_head_reads(patch: LongformerPatch, head: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """Make [CLS] global before the head does so itself, whose own way fails when it is given embeddings."""
    tokens = args[0] if args else kwargs.get("input_ids")
    tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
    if len(args) > 2 or tokens is None or kwargs.get("global_attention_mask") is not None:
        return None
    first = torch.arange(tokens.shape[1], device=tokens.device) == 0
    if not torch.compiler.is_compiling() and reads_cls_only(head):
        patch.reads_cls.add(get_ident())
    return args, dict(kwargs, global_attention_mask=first.long().expand(tokens.shape[0], -1))


def _head_is_done(patch: LongformerPatch, *_: Any) -> None:
    if not torch.compiler.is_compiling():
        patch.reads_cls.discard(get_ident())


def grad_rows(longformer: Any, source: Any, embedded: Tensor) -> int | None:
    """How many rows at the front of the first layer's input need a gradient: those of `source`, a prefix method.

    None for all rows: where the embeddings are trained, or where some other hook might add trained parameters.
    """
    encoder = longformer.encoder
    others = [hook for hook in encoder._forward_pre_hooks.values() if not is_hook_of(source, hook)]
    if embedded.requires_grad or others or has_hooks(encoder.layer[0]):
        return None
    return 0 if source is None else source.virtual_tokens()


def is_hugging_face_head(head: Any) -> bool:
    """Whether the head's forward is that of LongformerForSequenceClassification; it may be a subclass."""
    return _innermost(head.forward) is _innermost(LongformerForSequenceClassification.forward)


def _innermost(function: Callable[..., Any]) -> Any:
    function = inspect.unwrap(function)  # accelerate wraps it, for autocast
    return getattr(function, "__func__", function)


def reads_cls_only(head: Any) -> bool:
    """Whether this Hugging Face head reads only the first row of the last hidden state."""
    classifier = head.classifier  # peft may have wrapped it, to train a copy
    inner = getattr(classifier, "original_module", classifier)
    return type(inner) is LongformerClassificationHead and not any(map(has_hooks, classifier.modules()))


def has_other_readers(longformer: Any, source: Any) -> bool:
    """Whether a hook reads rows of the model or of its last layer, or may change what is global, other than those of
    `source`, a prefix method."""
    last = longformer.encoder.layer[-1]
    whole = (longformer, longformer.encoder)
    returned = [hook for part in whole for hook in part._forward_hooks.values()]
    if not all(is_hook_of(source, hook) for hook in (*returned, *longformer._forward_pre_hooks.values())):
        return True
    if last._forward_hooks or any(part._backward_hooks or part._backward_pre_hooks for part in (*whole, last)):
        return True
    return any(has_hooks(part) for part in last.modules() if part is not last)


def cls_only_layer(layer: Any, hidden_states: Tensor, pattern: AttentionPattern, prefix: LayerPrefix) -> Tensor:
    """The layer's output [batch, length, hidden], with zeros in all rows but `pattern.cls_row`.

    Hugging Face computes all rows and drops all but [CLS]. That row is global, so it needs no local projections, and
    as a single row no projected keys and values of the sequence (see `sliding_window`). The layer then costs next to
    nothing: six layers take a sixth less time, twelve a twelfth less, forward and backward.
    """
    row, own = pattern.cls_row, layer.attention.self
    assert row is not None
    batch, length = hidden_states.shape[:2]
    index = torch.full((batch, 1), row, device=hidden_states.device)
    attended, _ = attend_globally(
        own,
        hidden_states,
        pattern,
        GlobalTokens(index, torch.ones_like(index, dtype=torch.bool)),
        prefix.key_values,
        prefix.part,
        own.dropout if own.training else 0.0,
        exact=True,
    )
    attended = attended.masked_fill(pattern.is_masked[:, row, None, None], 0.0)  # as for any row of padding
    attended = _with_unused_parameters(attended, (own.query, own.key, own.value))
    states = layer.attention.output(attended, hidden_states[:, row : row + 1])
    return F.pad(layer.output(layer.intermediate(states), states), (0, 0, row, length - row - 1))


def _with_unused_parameters(rows: Tensor, modules: tuple[nn.Module, ...]) -> Tensor:
    """The same rows, connected to the modules' parameters so that these get gradients of zero.

    DistributedDataParallel waits for the gradient of every trained parameter.
    """
    trained = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    if not trained or not torch.is_grad_enabled():
        return rows
    nothing = torch.stack([0.0 * parameter.sum(dtype=torch.float32) for parameter in trained]).sum()
    return rows + nothing.to(rows.dtype)

"""Install the fast attention in Hugging Face's models and uninstall it; and the forwards that Longformer gets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LongformerForSequenceClassification, LongformerModel, ModernBertModel
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutput,
    LongformerBaseModelOutputWithPooling,
)

from prefixprop.attention.backends import Backend, check_backend, choose
from prefixprop.attention.cls_only_layer import (
    cls_only_layer,
    has_other_readers,
    is_hugging_face_head,
    reads_cls_only,
)
from prefixprop.attention.hooks import grad_rows
from prefixprop.attention.modernbert import ModernBertPatch
from prefixprop.attention.patch import EncoderPatch, Undo, replace_forward, without_compiler
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import prefixed_keys


def install(model: nn.Module, backend: str = "auto") -> None:
    """Compute the attention of every Longformer and ModernBERT in `model` with `backend`.

    Weights, calls and results stay the same. The backends are `triton` (NVIDIA GPUs since Ampere) and `sdpa` (plain
    PyTorch, everywhere); `auto` takes the first one that works on the model's device. `uninstall` puts Hugging Face's
    attention back. Under `torch.compile` the encoder runs as it is, behind a graph break.
    """
    check_backend(backend)
    for encoder, patch in _encoders(model):
        patch.of(encoder).backend = backend
    for head in model.modules():
        if isinstance(head, LongformerForSequenceClassification):
            LongformerPatch.of(head.longformer).serve(head)


def uninstall(model: nn.Module) -> None:
    """Put Hugging Face's attention back; a prefix method still uses the fast one while its adapter is active."""
    for encoder, patch in _encoders(model):
        attention = patch.of(encoder)
        attention.backend = None
        attention.release_if_unused()


class LongformerPatch(EncoderPatch):
    """The replaced forwards of a Longformer."""

    def __init__(self, longformer: Any) -> None:
        self.longformer = longformer
        self.running: Backend | None = None  # in the current pass; None where Hugging Face's runs
        self.cls_mask: Tensor | None = None  # made for a head that reads [CLS] only, until our forward gets it
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
                replace_forward(layer.attention.self, partial(_attention_forward, self, index)),
                replace_forward(layer.attention.output, partial(_output_forward, self)),
                replace_forward(layer.output, partial(_output_forward, self)),
            ]
        return undo

    def serve(self, head: Any) -> None:
        """Make [CLS] global before the head does so itself: its own way fails when it is given embeddings.

        Not for a subclass with a forward of its own, which may do something else.
        """
        if not self._serves_head and is_hugging_face_head(head):
            self._serves_head = True
            hook = partial(_make_cls_global, self)
            self._undo.append(head.register_forward_pre_hook(hook, with_kwargs=True).remove)


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
    # For any other mask we would have to read its values to know whether it makes the first token global.
    reads_cls, patch.cls_mask = global_attention_mask is not None and global_attention_mask is patch.cls_mask, None
    # As the encoder has it: negative for padding (0), zero for local (1), positive for global tokens (2).
    mask = (seen - 1) * torch.finfo(dtype).max

    config = longformer.config
    flags = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
    flags = {name: getattr(config, name) if value is None else value for name, value in flags.items()}
    source = patch.active_source()
    row = None
    if reads_cls and not any(flags.values()) and not has_other_readers(longformer, source):
        row = 0 if source is None else source.pooled_row()
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
    source = patch.active_source()
    patch.running = choose(patch.backend, hidden_states.device) if patch.is_on() else None
    if patch.running is None:
        flags = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        return original(hidden_states, attention_mask, padding_len=padding_len, **flags, **others)
    length = hidden_states.shape[1] - padding_len
    hidden_states, attention_mask = hidden_states[:, :length], attention_mask[:, :length]
    rows_outside_softmax = source.virtual_tokens() if source is not None and source.prefix_part(0) is not None else 0
    if source is not None and source.virtual_tokens():
        front_rows = None
    # Hugging Face's mask is negative for padding, 0 for local and positive for global tokens.
    is_masked, is_global = attention_mask < 0, attention_mask > 0
    known = (rows_outside_softmax, cls_row, grad_rows, patch.running, front_rows)
    pattern = AttentionPattern(is_masked, is_global, *known)

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


def _layer_forward(
    patch: LongformerPatch,
    index: int,
    original: Callable[..., tuple[Tensor, ...]],
    layer: Any,
    hidden_states: Tensor,
    attention_mask: Any = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, ...]:
    """`LongformerLayer.forward`, as one operation where the backend has one."""
    # A layer may also be called directly, with a mask of Hugging Face's.
    found = isinstance(attention_mask, AttentionPattern)
    if found:
        # Backward may recompute a checkpointed layer, after a pass without a prefix.
        patch.running = attention_mask.backend
    if patch.running is None or not found or layer.chunk_size_feed_forward > 0:
        return original(hidden_states, attention_mask, output_attentions=output_attentions, **others)
    source = patch.active_source()
    if attention_mask.cls_row is not None and index == len(patch.longformer.encoder.layer) - 1:
        part = None if source is None else source.prefix_part(index)
        front = prefixed_keys(source, index, hidden_states)
        return (cls_only_layer(layer, hidden_states, attention_mask, front, part),)
    if patch.running.whole_layer is not None and not output_attentions:
        prefix = partial(prefixed_keys, source, index, hidden_states)  # drawn once, dropout and all
        fused = None if source is None else source.fused_part(index)
        is_other = source is not None and fused is None and source.prefix_part(index) is not None
        learning = attention_mask.grad_rows if index == 0 else None
        output = patch.running.whole_layer(layer, hidden_states, attention_mask, prefix, fused, is_other, learning)
        if output is not None:
            return (output,)
    # Hugging Face's forward inspects a signature at every call.
    attended, *weights = layer.attention(
        hidden_states, attention_mask=attention_mask, output_attentions=output_attentions
    )
    return (layer.output(layer.intermediate(attended), attended), *weights)


def _attention_forward(
    patch: LongformerPatch,
    index: int,
    original: Callable[..., tuple[Tensor, ...]],
    module: nn.Module,
    hidden_states: Tensor,
    attention_mask: Any = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, ...]:
    """`LongformerSelfAttention.forward`: the fast one where the encoder made a pattern."""
    if not isinstance(attention_mask, AttentionPattern):
        return original(hidden_states, attention_mask=attention_mask, output_attentions=output_attentions, **others)
    source = patch.active_source()
    assert patch.running is not None
    return patch.running.self_attention(
        module,
        hidden_states,
        attention_mask,
        prefix=prefixed_keys(source, index, hidden_states),
        prefix_part=None if source is None else source.prefix_part(index),
        output_attentions=output_attentions,
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


def _make_cls_global(patch: LongformerPatch, head: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    tokens = args[0] if args else kwargs.get("input_ids")
    tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
    if len(args) > 2 or tokens is None or kwargs.get("global_attention_mask") is not None:
        return None
    first = torch.arange(tokens.shape[1], device=tokens.device) == 0
    mask = first.long().expand(tokens.shape[0], -1)
    if not torch.compiler.is_compiling() and reads_cls_only(head):
        patch.cls_mask = mask
    return args, dict(kwargs, global_attention_mask=mask)


def _encoders(model: nn.Module) -> list[tuple[Any, type[EncoderPatch]]]:
    found = [
        (module, patch) for module in model.modules() for kind, patch in FAMILIES.items() if isinstance(module, kind)
    ]
    if not found:
        name = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise ValueError(
            f"The fast attention is for Longformer and ModernBERT models; this is a {name!r} model and needs none."
        )
    return found


FAMILIES: dict[type[nn.Module], type[EncoderPatch]] = {
    LongformerModel: LongformerPatch,
    ModernBertModel: ModernBertPatch,
}

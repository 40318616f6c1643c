"""The last layer for the only row that a classification head reads.

Hugging Face computes all rows and drops all but [CLS]. That row is global, so it needs no local projections, and as a
single row no projected keys and values of the sequence (see `sliding_window`). The layer then costs next to nothing:
six layers take a sixth less time, twelve a twelfth less, forward and backward.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LongformerForSequenceClassification
from transformers.models.longformer.modeling_longformer import LongformerClassificationHead

from prefixprop.attention.hooks import has_hooks, is_hook_of
from prefixprop.attention.pattern import AttentionPattern, GlobalTokens
from prefixprop.attention.prefix import PrefixedKeys, PrefixPart
from prefixprop.attention.sliding_window import attend_globally


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
    """Whether a hook reads rows of the model or of its last layer, other than those of `source`, a prefix method."""
    last = longformer.encoder.layer[-1]
    whole = (longformer, longformer.encoder)
    returned = [hook for part in whole for hook in part._forward_hooks.values()]
    if not all(is_hook_of(source, hook) for hook in returned):
        return True
    if last._forward_hooks or any(part._backward_hooks or part._backward_pre_hooks for part in (*whole, last)):
        return True
    return any(has_hooks(part) for part in last.modules() if part is not last)


def cls_only_layer(
    layer: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None,
    prefix_part: PrefixPart | None,
) -> Tensor:
    """The layer's output [batch, length, hidden], with zeros in all rows but `pattern.cls_row`."""
    row, own = pattern.cls_row, layer.attention.self
    assert row is not None
    batch, length = hidden_states.shape[:2]
    index = torch.full((batch, 1), row, device=hidden_states.device)
    attended, _ = attend_globally(
        own,
        hidden_states,
        pattern,
        GlobalTokens(index, torch.ones_like(index, dtype=torch.bool)),
        prefix,
        prefix_part,
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

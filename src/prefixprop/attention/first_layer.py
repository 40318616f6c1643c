"""The first layer's backward pass, of which hardly anything is asked.

Nothing learns in front of it but a prefix: the rows of the embedded sequence want no gradient. What they would get
through attention to each other need not be computed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from prefixprop.attention.watching import is_hook_of, is_watched


def learning_rows(longformer: Any, source: Any, embedded: Tensor) -> int | None:
    """How many rows at the front of the first layer's input want a gradient: those of `source`, a prefix method.

    None for all rows: where the embeddings learn, and where a hook of somebody else might add what learns.
    """
    encoder = longformer.encoder
    others = [hook for hook in encoder._forward_pre_hooks.values() if not is_hook_of(source, hook)]
    if embedded.requires_grad or others or is_watched(encoder.layer[0]):
        return None
    return 0 if source is None else source.prefix_rows()

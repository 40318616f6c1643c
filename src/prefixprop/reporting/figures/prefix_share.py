"""λ: how much of every row's softmax attention goes to the prefix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prefixprop.tuners.layer import PrefixLayer


@torch.no_grad()
def prefix_share(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The share of the active prefix in the attention of one document, [layers, heads, real tokens].

    `inputs` is one tokenized document, a batch of one. Each value is what softmax gives to all prefix keys together,
    the λ of the paper's appendix; the attentions that a model returns leave it out, so it is what they lack to one.
    """
    layer = next((module for module in model.modules() if isinstance(module, PrefixLayer)), None)
    active = None if layer is None else layer.active_prefix()
    if active is None:
        raise ValueError("The model has no active prefix whose share could be measured.")
    if active[1].kernel is not None:
        raise ValueError(
            "With a kernel the prefix has no share of the softmax: alpha stands in its place; plot that instead."
        )
    if len(inputs["input_ids"]) != 1:
        raise ValueError(f"Pass one document at a time, not {len(inputs['input_ids'])}.")

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    implementation, was_training = base.config._attn_implementation, model.training
    base.set_attn_implementation("eager")  # the others return no attentions
    model.eval()
    try:
        output = model(**inputs, output_attentions=True)
    finally:
        base.set_attn_implementation(implementation)
        model.train(was_training)

    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))[0].bool()
    shares = []
    for index, weights in enumerate(output.attentions):
        kept = weights[0].float().sum(dim=-1)  # [heads, tokens]
        if output.get("global_attentions") is not None:
            # Longformer shows the rows of global tokens apart, and as zeros here.
            everywhere = (kept == 0).all(dim=0) & real
            kept[:, everywhere] = output.global_attentions[index][0].float().sum(dim=1)[:, : int(everywhere.sum())]
        shares.append((1 - kept)[:, real])
    return torch.stack(shares).clamp(0, 1)

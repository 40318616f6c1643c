"""What prefixes do: alpha and gates over training, and λ, the share of attention that they get."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure

from prefixprop.report.choose import grouped
from prefixprop.report.figures import BLUE, VERMILION, new_axes, new_figure, saved

if TYPE_CHECKING:  # a report of runs needs no PyTorch
    from torch import Tensor

LOGGED = re.compile(r"(?P<name>alpha|alpha_query|gate)/layer_(?P<layer>\d+)(?:/head_(?P<head>\d+))?")
_AXES = {"alpha": "α", "alpha_query": "length of the query vector", "gate": "gate"}


def plot_alpha(history: Iterable[Mapping[str, Any]], path: str | Path | None = None, of: str = "alpha") -> Figure:
    """Draw alpha per layer, and per head where there is one each, over training; or the gates, `of="gate"`.

    `history` is `trainer.state.log_history` of a training that logged alpha (`prefixprop.train.log_alpha`). The
    figure is written to `path` if given; its ending says how (png, pdf, svg).
    """
    table = pd.DataFrame(list(history))
    logged = [found for key in table if (found := LOGGED.fullmatch(key)) and found["name"].startswith(of)]
    if not logged:
        raise ValueError(f"The history holds no {of}; train with prefixprop.train.log_alpha(trainer).")
    layers = grouped(logged, lambda found: int(found["layer"]))
    columns = 3 if len(layers) in (3, 5, 6, 9) else min(len(layers), 4)
    rows = math.ceil(len(layers) / columns)
    figure = new_figure(width=3.0 * columns, height=2.4 * rows)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis, (layer, heads) in zip(axes.flat, sorted(layers.items()), strict=False):
        values = table.set_index("step")[[found[0] for found in heads]].dropna()
        style = {"linewidth": 0.8, "alpha": 0.5} if len(heads) > 1 else {"linewidth": 1.8}
        axis.plot(values, color=BLUE, label=["one head", *[None] * (len(heads) - 1)], **style)
        if len(heads) > 1:
            axis.plot(values.mean(axis=1), color=VERMILION, linewidth=1.8, label="mean of the heads")
        axis.set_title(f"layer {layer}", fontsize=9)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(layers) :]:
        axis.set_visible(False)
    for axis in axes.flat[len(layers) - columns : len(layers)]:
        axis.tick_params(labelbottom=True)
    if len(next(iter(layers.values()))) > 1:
        axes.flat[0].legend(fontsize=7, frameon=False)
    figure.supxlabel("training step", fontsize=9)
    figure.supylabel(_AXES[logged[0]["name"]], fontsize=9)
    return saved(figure, path)


def prefix_share(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The share of the active prefix in the attention of one document, [layers, heads, real tokens].

    `inputs` is one tokenized document, a batch of one. Each value is what softmax gives to all prefix keys together,
    the λ of the paper's appendix; the attentions that a model returns leave it out, so it is what they lack to one.
    """
    import torch

    from prefixprop.tuners.layer import PrefixLayer

    layer = next((module for module in model.modules() if isinstance(module, PrefixLayer)), None)
    active = None if layer is None else layer.active_prefix()
    if active is None:
        raise ValueError("The model has no active prefix, so there is no share to measure.")
    if active.config.kernel is not None:
        raise ValueError("With a kernel the prefix has no share of the softmax: alpha takes its place; plot that.")
    if len(inputs["input_ids"]) != 1:
        raise ValueError(f"Pass one document at a time, not {len(inputs['input_ids'])}.")

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    implementation, was_training = base.config._attn_implementation, model.training
    base.set_attn_implementation("eager")  # the others return no attentions
    model.eval()
    try:
        with torch.no_grad():
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


def plot_prefix_share(share: Tensor, path: str | Path | None = None) -> Figure:
    """Draw the share of attention that the prefix gets in every layer, from `prefix_share`."""
    figure, axis = new_axes("layer", "share of attention on the prefix, λ", 1.6 + 0.6 * len(share), 3.2)
    layers, rows = list(range(1, len(share) + 1)), share.flatten(1)
    low, high = rows.quantile(0.1, dim=1).tolist(), rows.quantile(0.9, dim=1).tolist()
    axis.fill_between(layers, low, high, color=BLUE, alpha=0.2, label="80 % of tokens and heads")
    for layer, head_means in zip(layers, share.mean(dim=2), strict=True):
        label = "one head" if layer == 1 else None
        axis.scatter([layer] * len(head_means), head_means.tolist(), s=10, color=BLUE, label=label)
    axis.plot(layers, rows.mean(dim=1).tolist(), color=VERMILION, linewidth=1.8, label="mean")
    axis.set(xticks=layers, ylim=(0, None))
    axis.legend(fontsize=8, frameon=False)
    return saved(figure, path)

"""Writes trained alphas (Eq. 3) and gates into the training log, layer by layer."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback

from prefixprop.tuners.layer import PrefixLayer


def trained_alpha(model: nn.Module) -> dict[str, float]:
    """The active adapter's trained alpha by name, such as `alpha/layer_1` or `alpha/layer_1/head_3`.

    In mode `query` alpha differs from row to row; what is given instead is how long the trained vector of each head
    is (`alpha_query/layer_1/head_3`): zero is where it starts, at the configured alpha for every query. Its gates, if
    it has some, are `gate/layer_1` and so on.
    """
    values: dict[str, float] = {}
    for layer in model.modules():
        if not isinstance(layer, PrefixLayer):
            continue
        trained = [("gate", weight) for weight in layer.active_gates()]
        for weight in layer.active_alpha():
            trained.append(("alpha_query", weight.norm(dim=-1)) if weight.dim() == 3 else ("alpha", weight))
        for name, numbers in trained:
            for index, number in enumerate(numbers.detach().float().cpu(), start=1):
                if number.dim() == 0:
                    values[f"{name}/layer_{index}"] = number.item()
                for head, value in enumerate(number.tolist() if number.dim() else [], start=1):
                    values[f"{name}/layer_{index}/head_{head}"] = value
    return values


class AlphaLogger(TrainerCallback):
    """Adds `trained_alpha` to everything the Trainer logs."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict | None = None, model: Any = None, **_: Any
    ) -> None:
        if logs is None or model is None:
            return
        values = trained_alpha(model)
        logs.update(values)
        state.log_history[-1].update(values)


def log_alpha(trainer: Trainer) -> None:
    """Let a trainer log alpha; put first among the callbacks, so that trackers see it too."""
    trainer.callback_handler.callbacks.insert(0, AlphaLogger())

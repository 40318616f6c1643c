"""From what a user says to what a run does: idle settings dropped, open ones as in the paper (Appendix A)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefixprop.settings.idle import without_idle
from prefixprop.settings.methods import METHODS
from prefixprop.settings.run_settings import RunSettings


def resolve(settings: RunSettings) -> RunSettings:
    """The settings with every number that was left open, except `max_length`, which needs the model.

    Runs whose resolved settings agree are the same run, so this is what names, rows and resumption compare.
    """
    settings = without_idle(settings)
    defaults: dict[str, Any] = {
        "epochs": settings.task_row.epochs,
        "num_virtual_tokens": settings.task_row.num_virtual_tokens,
        "learning_rate": METHODS[settings.method].learning_rate,
        "attention_dropout": settings.dropout,
    }
    return replace(settings, **{name: value for name, value in defaults.items() if getattr(settings, name) is None})

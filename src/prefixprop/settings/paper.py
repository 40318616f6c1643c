"""The paper's hyperparameters, where they depend on task or method (Appendix A, table of hyperparameters)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefixprop.settings.run_settings import RunSettings

EPOCHS = {"hyperpartisan": 20}
OTHER_EPOCHS = 10
PREFIX_LENGTHS = {"wikihop": 32}
OTHER_PREFIX_LENGTH = 8

# The paper searches {1e-2, 5e-2, 1e-3, 5e-3, 5e-4} for prefixes and {3e-5, 5e-5} for fine-tuning. It has neither
# head-only training nor LoRA; theirs are usual values.
LEARNING_RATES = {
    "prefix-propagation": 5e-3,
    "prefix-tuning": 5e-3,
    "fine-tuning": 3e-5,
    "head-only": 1e-3,
    "lora": 5e-4,
}


def with_paper_defaults(settings: RunSettings) -> RunSettings:
    """The settings with every number that was left to the paper, except `max_length`, which needs the model."""
    task = settings.task or ""
    defaults: dict[str, Any] = {
        "epochs": EPOCHS.get(task, OTHER_EPOCHS),
        "num_virtual_tokens": PREFIX_LENGTHS.get(task, OTHER_PREFIX_LENGTH),
        "learning_rate": LEARNING_RATES[settings.method],
        "attention_dropout": settings.dropout,
    }
    return replace(settings, **{name: value for name, value in defaults.items() if getattr(settings, name) is None})

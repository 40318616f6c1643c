"""Prefix methods for long-document encoders, as peft methods.

>>> import prefixprop  # makes the methods known to peft
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefixprop import attention, models
    from prefixprop.config import PrefixPropagationConfig, PrefixTuningConfig
    from prefixprop.counting import ParameterCount, count_parameters
    from prefixprop.prediction import load_run

__version__ = "0.1.0"

__all__ = [
    "ParameterCount",
    "PrefixPropagationConfig",
    "PrefixTuningConfig",
    "__version__",
    "attention",
    "count_parameters",
    "load_run",
    "models",
]

# Loaded when they are asked for: PyTorch and peft take seconds that a command's help can do without.
_HOMES = {
    "ParameterCount": "prefixprop.counting",
    "PrefixPropagationConfig": "prefixprop.config",
    "PrefixTuningConfig": "prefixprop.config",
    "count_parameters": "prefixprop.counting",
    "load_run": "prefixprop.prediction",
}
_SUBMODULES = ("attention", "models")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"prefixprop.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _make_known_to_peft() -> None:
    """Let peft know the methods: now if it is there, otherwise as soon as somebody imports it."""
    from prefixprop.peft_import import after_peft

    if "peft" in sys.modules:
        importlib.import_module("prefixprop.config")
    else:
        after_peft("prefixprop.config")


_make_known_to_peft()

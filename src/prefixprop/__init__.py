"""Prefix methods for long-document encoders, as peft methods.

>>> import prefixprop  # makes the methods known to peft
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from prefixprop.lazy_imports import after_peft, lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        "ParameterCount": "counting",
        "PrefixPropagationConfig": "config",
        "PrefixTuningConfig": "config",
        "attention": None,
        "count_parameters": "counting",
        "load_run": "prediction",
        "models": None,
    },
)


def _make_known_to_peft() -> None:
    """Let peft know the methods: now if it is there, otherwise as soon as somebody imports it."""
    if "peft" in sys.modules:
        importlib.import_module("prefixprop.config")
    else:
        after_peft("prefixprop.config")


_make_known_to_peft()

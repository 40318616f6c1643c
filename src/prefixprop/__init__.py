"""Prefix methods for long-document encoders, as peft methods.

>>> import prefixprop  # makes the methods known to peft
"""

from __future__ import annotations

import importlib
import sys

from prefixprop.lazy_imports import after_peft, lazy_names

__version__ = "0.2.0"

# Types are in __init__.pyi, because these names are loaded when they are asked for.
__all__ = [
    "DocumentClassifier",
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
        "DocumentClassifier": "classifier",
        "ParameterCount": "tuners.counting",
        "PrefixPropagationConfig": "config",
        "PrefixTuningConfig": "config",
        "attention": None,
        "count_parameters": "tuners.counting",
        "load_run": "predict",
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

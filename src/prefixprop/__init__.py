"""Prefix methods for long-document encoders, as peft methods.

>>> import prefixprop  # registers the methods with peft
"""

from typing import TYPE_CHECKING, Any

from prefixprop import attention, models
from prefixprop.config import PrefixPropagationConfig, PrefixTuningConfig
from prefixprop.counting import ParameterCount, count_parameters
from prefixprop.registration import register

if TYPE_CHECKING:
    from prefixprop.prediction import load_run

__version__ = "0.1.0"
register()

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


def __getattr__(name: str) -> Any:
    # Imported when asked for: scikit-learn, which evaluation needs, takes a second that tuning can do without.
    if name == "load_run":
        from prefixprop.prediction import load_run

        return load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Prefix methods for long-document encoders, as peft methods.

>>> import prefixprop  # registers the methods with peft
"""

from prefixprop import attention, models
from prefixprop.config import PrefixPropagationConfig, PrefixTuningConfig
from prefixprop.counting import ParameterCount, count_parameters
from prefixprop.registration import register

__version__ = "0.1.0"
register()

__all__ = [
    "ParameterCount",
    "PrefixPropagationConfig",
    "PrefixTuningConfig",
    "__version__",
    "attention",
    "count_parameters",
    "models",
]

"""The prefix methods, each a file that follows its equation."""

from prefixprop.tuners.propagation import PrefixPropagationModel
from prefixprop.tuners.registration import register, register_method
from prefixprop.tuners.tuning import PrefixTuningModel

register()

__all__ = ["PrefixPropagationModel", "PrefixTuningModel", "register_method"]

"""Makes peft know the prefix methods; importing the tuners runs it once."""

from __future__ import annotations

from peft.mapping import (
    PEFT_TYPE_TO_CONFIG_MAPPING,
    PEFT_TYPE_TO_PREFIX_MAPPING,
    PEFT_TYPE_TO_TUNER_MAPPING,
)

from prefixprop.config import PrefixConfig, PrefixPropagationConfig, PrefixTuningConfig
from prefixprop.tuners.base import PrefixTuner
from prefixprop.tuners.propagation import PrefixPropagationModel
from prefixprop.tuners.tuning import PrefixTuningModel

METHODS: tuple[tuple[type[PrefixConfig], type[PrefixTuner]], ...] = (
    (PrefixPropagationConfig, PrefixPropagationModel),
    (PrefixTuningConfig, PrefixTuningModel),
)


def register() -> None:
    """Enter both methods into peft's tables (its own `register_peft_method` admits only peft's types)."""
    for config, tuner in METHODS:
        PEFT_TYPE_TO_CONFIG_MAPPING[tuner.peft_type] = config
        PEFT_TYPE_TO_TUNER_MAPPING[tuner.peft_type] = tuner
        PEFT_TYPE_TO_PREFIX_MAPPING[tuner.peft_type] = tuner.prefix

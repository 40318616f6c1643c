"""The prefix methods, one file per equation. Importing them makes peft know them, and the embedded models."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from peft import (
    AutoPeftModelForFeatureExtraction,
    AutoPeftModelForQuestionAnswering,
    AutoPeftModelForSequenceClassification,
    AutoPeftModelForTokenClassification,
)
from peft.mapping import (
    PEFT_TYPE_TO_CONFIG_MAPPING,
    PEFT_TYPE_TO_PREFIX_MAPPING,
    PEFT_TYPE_TO_TUNER_MAPPING,
)
from peft.utils import save_and_load
from transformers import PreTrainedModel

from prefixprop.config import PrefixConfig, PrefixPropagationConfig, PrefixTuningConfig
from prefixprop.models.embedded import NOTED
from prefixprop.tuners.base import PrefixTuner
from prefixprop.tuners.propagation import PrefixPropagationModel
from prefixprop.tuners.tuning import PrefixTuningModel

AUTO_CLASSES: dict[str, Any] = {
    "SEQ_CLS": AutoPeftModelForSequenceClassification,
    "TOKEN_CLS": AutoPeftModelForTokenClassification,
    "QUESTION_ANS": AutoPeftModelForQuestionAnswering,
    "FEATURE_EXTRACTION": AutoPeftModelForFeatureExtraction,
}


class BaseModels:
    """Loads base models for an auto class of peft: embedded ones by the name in the adapter, others as usual."""

    def __init__(self, task: str, others: Any) -> None:
        self.task = task
        self.others = others

    def from_pretrained(self, name: Any, *arguments: Any, **options: Any) -> PreTrainedModel:
        if name in NOTED:
            return NOTED[name].from_pretrained(self.task, **options)
        return self.others.from_pretrained(name, *arguments, **options)


def register_method(config: type[PrefixConfig], tuner: type[PrefixTuner]) -> None:
    """Add a method to peft's tables (peft's own `register_peft_method` accepts only peft's types)."""
    PEFT_TYPE_TO_CONFIG_MAPPING[tuner.peft_type] = config
    PEFT_TYPE_TO_TUNER_MAPPING[tuner.peft_type] = tuner
    PEFT_TYPE_TO_PREFIX_MAPPING[tuner.peft_type] = tuner.prefix


def _without_embedded(is_on_hub: Callable[..., bool | None]) -> Callable[..., bool | None]:
    """peft's search of the hub for a base model's config, which every save makes; embedded models are not there."""

    @wraps(is_on_hub)
    def search(repo_id: str, filename: str, **options: Any) -> bool | None:
        return False if repo_id in NOTED else is_on_hub(repo_id, filename, **options)

    return search


peft_saving: Any = save_and_load
peft_saving.check_file_exists_on_hf_hub = _without_embedded(peft_saving.check_file_exists_on_hf_hub)
register_method(PrefixPropagationConfig, PrefixPropagationModel)
register_method(PrefixTuningConfig, PrefixTuningModel)
for _task, _auto_class in AUTO_CLASSES.items():
    _auto_class._target_class = BaseModels(_task, _auto_class._target_class)

__all__ = ["PrefixPropagationModel", "PrefixTuningModel", "register_method"]

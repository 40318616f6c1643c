"""What can be trained: one row per method, from which flags, checks, defaults, folders and reports follow.

A new method is its peft configuration, its tuner, and a row here; from another package, `METHODS[row.name] = row`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peft import PeftConfig

    from prefixprop.settings.run_settings import RunSettings

# What is trained: an adapter, the whole model, the head alone, or several models whose answers are mixed.
ADAPTER, MODEL, HEAD, MIX = "adapter", "model", "head", "mix"
HEAD_FILE, MIX_FILE = "head.safetensors", "mix.json"


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    Attributes:
        name: Its name on the command line.
        summary: What is trained, in a few words.
        learning_rate: The peak if none is given; None: it is chosen by cross-validation, or there is none.
        trains: What is trained, and the folder of a run directory that keeps it: `ADAPTER`, `MODEL`, `HEAD` or `MIX`.
        config: The peft configuration of an adapter, as `module:class`; imported when it is needed.
        options: The settings that only this method uses, and the fields of `config` they become; `lora.r` is the
            field `r` of the part `lora`.
        is_prefix: Whether it is a prefix method.
        is_read_only: Whether its prefix only reads the text, which works for documents, not for questions.
    """

    name: str
    summary: str
    learning_rate: float | None
    trains: str
    config: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    is_prefix: bool = False
    is_read_only: bool = False

    @property
    def is_mix(self) -> bool:
        """Whether it chooses everything by answers to held-out documents, so that it needs no dev set."""
        return self.trains == MIX

    @property
    def config_class(self) -> type[PeftConfig]:
        """The class of the peft configuration."""
        assert self.config is not None
        module, _, name = self.config.partition(":")
        found: type[PeftConfig] = getattr(importlib.import_module(module), name)
        return found

    def peft_config(self, settings: RunSettings) -> PeftConfig:
        """The configuration of a run's adapter."""
        values: dict[str, Any] = {"read_only": True} if self.is_read_only else {}
        for setting, option in self.options.items():
            value = getattr(settings, setting)
            part, _, name = option.rpartition(".")
            owner = values.setdefault(part, {}) if part else values
            owner[name] = list(value) if isinstance(value, tuple) else value  # peft accepts no tuples of names
        return self.config_class(**values)


_READING = {name: name for name in ("num_virtual_tokens", "prefix_dropout", "init", "reparameterize", "gate")}
_PREFIX = _READING | {name: name for name in ("layout", "kernel", "alpha", "alpha_mode")}  # text reads these prefixes
_LORA = {"lora_rank": "r", "lora_targets": "target_modules"} | {name: name for name in ("lora_alpha", "lora_dropout")}
_LORA_WITH_PREFIX = {setting: f"lora.{option}" for setting, option in _LORA.items()}

# The paper searches {1e-2, 5e-2, 1e-3, 5e-3, 5e-4} for prefixes and {3e-5, 5e-5} for fine-tuning. It has no head-only
# training, no LoRA and no reading; the first two have common values, and reading the one that served a prototype.
# A prefix and LoRA share one learning rate, and the usual one of a prefix is too high for LoRA.
_PROPAGATION, _TUNING = "prefixprop.config:PrefixPropagationConfig", "prefixprop.config:PrefixTuningConfig"
_POOLED = _PREFIX | {"pooling": "pooling"}
_prefix = partial(Method, trains=ADAPTER, is_prefix=True)
_ROWS = (
    _prefix(
        "prefix-propagation",
        "virtual tokens in front of the text, with trained vectors added at every layer (Eq. 1), and the head",
        learning_rate=5e-3,
        config=_PROPAGATION,
        options=_POOLED,
    ),
    _prefix(
        "prefix-tuning",
        "keys and values in front of those of every layer (Eq. 2), and the head",
        learning_rate=5e-3,
        config=_TUNING,
        options=_PREFIX,
    ),
    _prefix(
        "prefix-reading",
        "virtual tokens as in prefix-propagation that read the text and are not read by it, and the head",
        learning_rate=2e-3,
        config=_PROPAGATION,
        options=_READING,
        is_read_only=True,
    ),
    _prefix(
        "readers",
        "many prefixes as in prefix-reading at once, and TF-IDF; chosen and mixed by cross-validation",
        learning_rate=None,
        trains=MIX,
        config=_PROPAGATION,
        options={name: name for name in ("num_virtual_tokens", "prefix_dropout")},
        is_read_only=True,
    ),
    Method("tfidf", "a linear model of words and word pairs, without the encoder", learning_rate=None, trains=MIX),
    Method("fine-tuning", "the whole model", learning_rate=3e-5, trains=MODEL),
    Method("head-only", "the head alone, on a frozen encoder", learning_rate=1e-3, trains=HEAD),
    Method(
        "lora",
        "low-rank changes of the attention projections, and the head",
        learning_rate=5e-4,
        trains=ADAPTER,
        config="peft:LoraConfig",
        options=_LORA,
    ),
    _prefix(
        "prefix-propagation+lora",
        "virtual tokens as in prefix-propagation, low-rank changes of the attention projections, and the head",
        learning_rate=5e-4,
        config=_PROPAGATION,
        options=_POOLED | _LORA_WITH_PREFIX,
    ),
    _prefix(
        "prefix-tuning+lora",
        "keys and values as in prefix-tuning, low-rank changes of the attention projections, and the head",
        learning_rate=5e-4,
        config=_TUNING,
        options=_PREFIX | _LORA_WITH_PREFIX,
    ),
)
METHODS: dict[str, Method] = {method.name: method for method in _ROWS}
BASELINE = "prefix-tuning"  # which the paper compares prefix-propagation with


def owners(setting: str) -> tuple[str, ...]:
    """The methods that a setting belongs to; none if it is not specific to methods."""
    return tuple(name for name, method in METHODS.items() if setting in method.options)

"""The configurations of the two prefix methods."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from peft import LoraConfig, PeftConfig, TaskType
from peft.utils import SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME
from safetensors import SafetensorError, safe_open

from prefixprop.choices import ALPHA_MODES, INITS, LAYOUTS, MOST_ALPHA, MOST_ROWS, POOLINGS
from prefixprop.kernels import build_kernel

TASK_TYPES = (TaskType.SEQ_CLS, TaskType.TOKEN_CLS, TaskType.QUESTION_ANS, TaskType.FEATURE_EXTRACTION)


class PrefixPeftType(str, Enum):  # noqa: UP042 (as peft's own, which it is shown beside)
    """Peft types of this package; name and value agree, as peft expects of its own."""

    PREFIX_PROPAGATION = "PREFIX_PROPAGATION"
    # peft has a PREFIX_TUNING of its own, which works through a decoder's key-value cache.
    LONG_PREFIX_TUNING = "LONG_PREFIX_TUNING"


@dataclass
class PrefixConfig(PeftConfig):
    """What both methods share. Use `PrefixPropagationConfig` or `PrefixTuningConfig`."""

    num_virtual_tokens: int = field(default=8, metadata={"help": "Number of virtual tokens (j)."})
    layout: str = field(
        default="paper",
        metadata={
            "help": "'paper': real tokens keep their positions and P(1) stands in front of the embedded text "
            "(Eq. 1). 'reference': as the authors' released code, real tokens are shifted by j positions and "
            "P(1) is added to the embedding of an empty word at positions 0 to j-1."
        },
    )
    pooling: str | None = field(
        default=None,
        metadata={
            "help": "What the classification head reads: 'cls', or 'prefix' for the first virtual token. If not set: "
            "'prefix' with read_only, 'cls' otherwise."
        },
    )
    prefix_dropout: float = field(
        default=0.1, metadata={"help": "Dropout on the prefix, with a new mask for every example."}
    )
    kernel: str | None = field(
        default=None,
        metadata={
            "help": "Kernel decomposition (Eq. 3): attention to the prefix is computed outside the softmax, as alpha "
            "times a kernel attention. 'exp', 'rbf', 'poly', 'linear' or a registered one; None: Eq. 1 and 2."
        },
    )
    alpha: float = field(
        default=0.005, metadata={"help": "Weight of the kernel attention; if it is trained, its start."}
    )
    alpha_mode: str = field(
        default="fixed",
        metadata={"help": "'fixed', or trained: one alpha per 'layer', per 'head', or made from each 'query'."},
    )
    kernel_length_scale: float | None = field(
        default=None, metadata={"help": "Kernel 'rbf': its length scale; d^(1/4) for heads of size d if not set."}
    )
    kernel_degree: int = field(default=2, metadata={"help": "Kernel 'poly': its even degree."})
    kernel_offset: float = field(default=1.0, metadata={"help": "Kernel 'poly': added before the power."})
    init: str = field(
        default="normal",
        metadata={"help": "'normal' (std 0.02), or 'vocab': start as randomly chosen real tokens."},
    )
    reparameterize: bool = field(
        default=False,
        metadata={"help": "Train the prefix through an MLP. Only the resulting prefix is saved."},
    )
    reparameterize_hidden: int | None = field(
        default=None, metadata={"help": "Hidden size of that MLP; the model's hidden size if not set."}
    )
    gate: bool = field(
        default=False, metadata={"help": "Train one number per layer that scales the prefix there, starting at 1."}
    )
    lora: LoraConfig | None = field(
        default=None,
        metadata={
            "help": "peft's LoRA as part of the same adapter; without target modules, in the family's usual layers."
        },
    )
    modules_to_save: list[str] | None = field(
        default=None,
        metadata={"help": "Modules trained and saved with the prefix; peft adds the head of the task."},
    )
    # Recorded when the adapter is created, and compared when it is loaded onto a model.
    model_type: str | None = field(default=None, metadata={"help": "Recorded: the model's type."})
    num_layers: int | None = field(default=None, metadata={"help": "Recorded: the model's layers."})
    token_dim: int | None = field(default=None, metadata={"help": "Recorded: the model's hidden size."})
    num_attention_heads: int | None = field(default=None, metadata={"help": "Recorded: the model's heads."})

    # peft's injection reads this name; prefix methods always target the whole encoder.
    target_modules: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.pooling is None:
            self.pooling = "cls"
        if self.task_type is not None and self.task_type not in TASK_TYPES:
            raise ValueError(
                f"{name}: task_type={str(self.task_type)!r} is not supported; choose one of "
                f"{', '.join(TASK_TYPES)}, or leave it out."
            )
        choices = {"layout": LAYOUTS, "pooling": POOLINGS, "init": INITS, "alpha_mode": ALPHA_MODES}
        for option, allowed in choices.items():
            _check_choice(name, option, getattr(self, option), allowed)
        self._check_kernel(name)
        if isinstance(self.lora, dict):  # as read from adapter_config.json
            self.lora = LoraConfig.from_peft_type(**{"peft_type": "LORA"} | self.lora)
        if not isinstance(self.lora, LoraConfig | None):
            raise ValueError(f"{name}: lora={self.lora!r} must be a peft LoraConfig.")
        _check_count(name, "num_virtual_tokens", self.num_virtual_tokens)
        if self.reparameterize_hidden is not None:
            _check_count(name, "reparameterize_hidden", self.reparameterize_hidden)
            if not self.reparameterize:
                raise ValueError(f"{name}: reparameterize_hidden needs reparameterize=True.")
        if not (isinstance(self.prefix_dropout, (int, float)) and 0 <= self.prefix_dropout < 1):
            raise ValueError(f"{name}: prefix_dropout={self.prefix_dropout!r} must be at least 0 and less than 1.")

    def _check_kernel(self, name: str) -> None:
        if self.kernel is None:
            if self.alpha_mode != "fixed":
                raise ValueError(f"{name}: alpha_mode={self.alpha_mode!r} needs a kernel; set kernel='exp'.")
            return
        if not isinstance(self.alpha, (int, float)) or not abs(self.alpha) <= MOST_ALPHA:
            raise ValueError(f"{name}: alpha={self.alpha!r} must be a number from -{MOST_ALPHA:,} to {MOST_ALPHA:,}.")
        try:
            build_kernel(self)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    @property
    def bias(self) -> str:
        """Which biases are trained, for peft: those of LoRA's settings."""
        return "none" if self.lora is None else self.lora.bias

    def to_dict(self) -> dict[str, Any]:
        entries: dict[str, Any] = super().to_dict()
        if self.lora is not None:
            own = self.lora.to_dict()
            entries["lora"] = {name: sorted(v) if isinstance(v, set) else v for name, v in own.items()}
        return entries

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str, subfolder: str | None = None, **kwargs: Any
    ) -> PrefixConfig:
        """Load the configuration, and refuse a local adapter whose weights are damaged or are a pickle.

        peft reads the configuration first, so a damaged file is best reported here.
        """
        folder = Path(pretrained_model_name_or_path, subfolder or "")
        if folder.is_dir():
            check_adapter_file(folder)
        return super().from_pretrained(pretrained_model_name_or_path, subfolder=subfolder, **kwargs)


@dataclass
class PrefixPropagationConfig(PrefixConfig):
    """Prefix-propagation (Eq. 1): j virtual tokens in front of the text, with P(l) added to them at every layer.

    >>> from peft import get_peft_model
    >>> config = PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=8)
    >>> config.layout, config.pooling
    ('paper', 'cls')
    >>> PrefixPropagationConfig(task_type="SEQ_CLS", read_only=True).pooling
    'prefix'
    """

    read_only: bool = field(
        default=False,
        metadata={
            "help": "Reading: the virtual tokens attend to the text, and the text does not attend to them, so its "
            "states are those of the frozen model. For sequence classification; the head reads the prefix."
        },
    )

    def __post_init__(self) -> None:
        if self.pooling is None and self.read_only:
            self.pooling = "prefix"
        super().__post_init__()
        self.peft_type = PrefixPeftType.PREFIX_PROPAGATION
        if self.read_only:
            self._check_read_only()

    def _check_read_only(self) -> None:
        problems = {
            "is for task_type='SEQ_CLS', because it leaves the text's states as they are": self.task_type
            not in (None, TaskType.SEQ_CLS),
            "needs pooling='prefix', because [CLS] does not see the prefix; leave pooling out": self.pooling == "cls",
            "needs layout='paper', because its virtual tokens take no positions of the text": self.layout != "paper",
            "does not work with a kernel, because the text does not attend to the prefix": self.kernel is not None,
            "does not work with LoRA, which would change the text's states; leave lora out": self.lora is not None,
        }
        for problem, is_there in problems.items():
            if is_there:
                raise ValueError(f"PrefixPropagationConfig: read_only=True {problem}.")


@dataclass
class PrefixTuningConfig(PrefixConfig):
    """Prefix-tuning (Eq. 2): j trained keys and values in front of those of every layer.

    >>> PrefixTuningConfig(task_type="SEQ_CLS").num_virtual_tokens
    8
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PrefixPeftType.LONG_PREFIX_TUNING
        if self.pooling != "cls":
            raise ValueError(
                "PrefixTuningConfig: pooling='prefix' is for prefix-propagation; prefix-tuning adds no tokens "
                "that could be pooled, so use pooling='cls'."
            )


def check_adapter_file(folder: Path) -> None:
    """Raise unless the adapter weights in `folder`, if there are any, are whole safetensors."""
    weights = folder / SAFETENSORS_WEIGHTS_NAME
    if not weights.exists():
        if (folder / WEIGHTS_NAME).exists():
            raise ValueError(
                f"{folder} holds {WEIGHTS_NAME}, a pickle; prefixprop loads adapters from "
                f"{SAFETENSORS_WEIGHTS_NAME} only: save it again with safe_serialization=True."
            )
        return
    try:
        with safe_open(os.fspath(weights), framework="pt"):
            pass  # it checks the length of the file, too
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{weights} is damaged or incomplete ({error}); copy or save the adapter again.") from error


def _check_choice(owner: str, option: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{owner}: {option}={value!r} is unknown; choose one of {', '.join(allowed)}.")


def _check_count(owner: str, option: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_ROWS:
        raise ValueError(f"{owner}: {option}={value!r} must be a whole number from 1 to {MOST_ROWS:,}.")


# Importing the tuners registers them with peft, so that every configuration can be used.
importlib.import_module("prefixprop.tuners")

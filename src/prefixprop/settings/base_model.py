"""The pretrained model that a run starts from: embedded, of the hub, or in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from prefixprop.backbones import FamilyFacts, family_of
from prefixprop.choices import EMBEDDED_MODELS
from prefixprop.data import add_special_tokens
from prefixprop.models import candidate_scorer, load_embedded
from prefixprop.models.embedded import EmbeddedModel
from prefixprop.settings.run_settings import RunSettings


@dataclass(frozen=True)
class BaseModel:
    """A pretrained encoder that heads can be put on.

    Attributes:
        name: Its name in reports.
        tokenizer: Its tokenizer, with WikiHop's special tokens where the task is WikiHop.
        limit: The longest text that it reads, in tokens.
        build: Makes a fresh model with a new head; the names of the labels, or None for candidate scoring.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    limit: int
    build: Callable[[tuple[str, ...] | None], PreTrainedModel]


def load_base_model(settings: RunSettings, tokenizer: PreTrainedTokenizerBase | None = None) -> BaseModel:
    """Find the model of the settings, and its tokenizer unless one is given; `build` reads the weights.

    A run stores its tokenizer, so that building its model again needs only the weights of the base model.
    """
    source: EmbeddedModel | str
    if settings.model in EMBEDDED_MODELS:
        source, embedded_tokenizer = load_embedded(settings.model)
        tokenizer = embedded_tokenizer if tokenizer is None else tokenizer
        name, limit = source.name, source.max_length
        overrides = _dropout(settings, family_of(source.model_type))
    else:
        source = name = settings.model
        config = load_remote(AutoConfig, source)
        if tokenizer is None:
            tokenizer = load_remote(AutoTokenizer, source)
        limit = token_limit(config, tokenizer)
        dropout = _dropout(settings, family_of(config.model_type))
        overrides = {key: value for key, value in dropout.items() if hasattr(config, key)}
    if settings.is_prefix_method and settings.layout == "reference" and settings.num_virtual_tokens:
        limit -= settings.num_virtual_tokens  # the released code shifts real tokens behind the prefix
    first_special_token = add_special_tokens(tokenizer) if settings.answers_questions else 0

    def build(label_names: tuple[str, ...] | None) -> PreTrainedModel:
        if label_names is None:
            options = {} if isinstance(source, EmbeddedModel) else {"use_safetensors": True}
            return candidate_scorer(source, first_special_token, settings.chunk_reduction, **overrides, **options)
        numbers = {name: number for number, name in enumerate(label_names)}
        labels = {"id2label": dict(enumerate(label_names)), "label2id": numbers}
        if isinstance(source, EmbeddedModel):
            return source("SEQ_CLS", **labels, **overrides)
        # A checkpoint that has a head for other labels gets a new one.
        safe = {"ignore_mismatched_sizes": True, "use_safetensors": True}
        return load_remote(AutoModelForSequenceClassification, source, **safe, **labels, **overrides)

    return BaseModel(name, tokenizer, limit, build)


def choose_max_length(settings: RunSettings, base: BaseModel) -> int:
    """The longest document in tokens: as set, or as in the paper for the task, up to the model's limit."""
    if settings.max_length is None:
        return min(settings.task_row.max_length or base.limit, base.limit)
    if settings.max_length > base.limit:
        raise ValueError(
            f"--max-length: {settings.max_length} tokens are more than the {base.limit} that {base.name} reads here; "
            "lower it, or choose a longer model (prefixprop.models.lengthen makes one)."
        )
    return settings.max_length


def _dropout(settings: RunSettings, family: type[FamilyFacts]) -> dict[str, Any]:
    attention = settings.dropout if settings.attention_dropout is None else settings.attention_dropout
    hidden = dict.fromkeys(family.hidden_dropout_fields, settings.dropout)
    return hidden | dict.fromkeys(family.attention_dropout_fields, attention)


def load_remote(kind: Any, name: str, **options: Any) -> Any:
    """Load a config, a tokenizer or a model of the hub or in a folder; code that comes with it is never run."""
    try:
        return kind.from_pretrained(name, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        raise _cannot_load(name, error) from error


def _cannot_load(name: str, error: Exception) -> ValueError:
    kind = "folder" if Path(name).is_dir() else "model of the hub"
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ValueError(
        f"--model: {name!r} cannot be loaded as a {kind} ({reason}); give {', '.join(EMBEDDED_MODELS)}, the name of "
        "a model of the hub, or a folder with config.json, model.safetensors and a tokenizer. Code that comes with a "
        "model is never run."
    )


def token_limit(config: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """The longest text that an encoder with this configuration reads, in tokens."""
    positions = getattr(config, "max_position_embeddings", None)
    limits = [tokenizer.model_max_length]
    if positions is not None:
        limits.append(positions - family_of(config.model_type).first_position_of(config))
    return min(limits)

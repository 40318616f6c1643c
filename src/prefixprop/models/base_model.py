"""The pretrained encoder that a run starts from: one in the package, one on the hub, or one in a folder.

A folder is identified by the fingerprint of its weights, and a hub model by its commit. A run stores this as the
revision, so that an encoder that has changed is refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from prefixprop.backbones import FamilyFacts, family_of
from prefixprop.choices import EMBEDDED_MODELS
from prefixprop.models.candidate_scoring import candidate_scorer
from prefixprop.models.embedded import EmbeddedModel, load_embedded

_WEIGHTS, _CONFIG = "*.safetensors", "config.json"


@dataclass(frozen=True)
class BaseModel:
    """A pretrained encoder that heads can be put on; its weights are read when a model is made."""

    name: str  # that of an embedded or hub model, or the absolute path of a folder
    # The commit of a hub model, or the fingerprint of a folder's weights; None for an embedded model.
    revision: str | None
    tokenizer: PreTrainedTokenizerBase
    limit: int  # the longest text that it reads, in tokens
    source: EmbeddedModel | str
    overrides: dict[str, Any] = field(default_factory=dict)

    def classifier(self, label_names: tuple[str, ...]) -> PreTrainedModel:
        """A model with a new head for these labels."""
        numbers = {name: number for number, name in enumerate(label_names)}
        labels = {"id2label": dict(enumerate(label_names)), "label2id": numbers}
        if isinstance(self.source, EmbeddedModel):
            return self.source("SEQ_CLS", **labels, **self.overrides)
        # A checkpoint that has a head for other labels gets a new one.
        options = self.loading | {"ignore_mismatched_sizes": True}
        return load_pretrained(AutoModelForSequenceClassification, self.source, **options, **labels, **self.overrides)

    def candidate_scorer(self, first_special_token: int, chunk_reduction: str) -> PreTrainedModel:
        """A model that scores the candidates of questions (WikiHop)."""
        if isinstance(self.source, EmbeddedModel):
            encoder = self.source("FEATURE_EXTRACTION", **self.overrides)
        else:
            encoder = load_pretrained(AutoModel, self.source, **self.loading, **self.overrides)
        return candidate_scorer(encoder, first_special_token, chunk_reduction)

    @property
    def loading(self) -> dict[str, Any]:
        """Which weights are read: never pickled ones, and of a hub model those of its revision."""
        return {"use_safetensors": True, "revision": None if Path(self.name).is_dir() else self.revision}


def load_base_model(
    name: str,
    revision: str | None = None,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> BaseModel:
    """Find an encoder, and its tokenizer unless one is given.

    `revision` is what `BaseModel.revision` was when a run was trained, or a branch, tag or commit of a hub model; a
    folder whose weights have another fingerprint is refused. A run stores its tokenizer, so that building its model
    again needs only the weights.
    """
    attention = dropout if attention_dropout is None else attention_dropout
    if name in EMBEDDED_MODELS:
        source, own_tokenizer = load_embedded(name)
        overrides = _dropout(family_of(source.model_type), dropout, attention)
        used = own_tokenizer if tokenizer is None else tokenizer
        return BaseModel(name, None, used, source.max_length, source, overrides)
    is_folder = Path(name).is_dir()
    if is_folder:
        name = str(Path(name).resolve())
        found = folder_fingerprint(Path(name))
        if revision not in (None, found):
            raise ValueError(
                f"--model: the weights in {name} have changed since the run was trained on them; restore them, or "
                "train again."
            )
        revision = found
    elif Path(name).is_absolute() or name.startswith("."):
        raise ValueError(f"--model: there is no folder {name}; restore it, or give another model.")
    options = {} if is_folder else {"revision": revision}
    config = load_pretrained(AutoConfig, name, **options)
    if tokenizer is None:
        tokenizer = load_pretrained(AutoTokenizer, name, **options)
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes one without files, too
            raise _cannot_load(name, ValueError("its tokenizer is missing or knows no words"))
    overrides = _dropout(family_of(config.model_type), dropout, attention)
    return BaseModel(
        name,
        revision if is_folder else getattr(config, "_commit_hash", None) or revision,
        tokenizer,
        token_limit(config, tokenizer),
        name,
        {key: value for key, value in overrides.items() if hasattr(config, key)},
    )


def folder_fingerprint(folder: Path) -> str:
    """The checksum of an encoder's configuration and weights."""
    digest = hashlib.sha256()
    for path in sorted({*folder.glob(_WEIGHTS), *folder.glob(_CONFIG)}):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{digest.hexdigest()[:32]}"


def load_pretrained(kind: Any, name: str, **options: Any) -> Any:
    """Load a config, a tokenizer or a model from the hub or a folder; code that comes with it is never run."""
    try:
        return kind.from_pretrained(name, trust_remote_code=False, **options)
    except Exception as error:  # transformers, safetensors and tokenizers let errors of every kind through
        raise _cannot_load(name, error) from error


def _cannot_load(name: str, error: Exception) -> ValueError:
    what = "folder" if Path(name).is_dir() else "model of the hub"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ValueError(
        f"--model: {name!r} cannot be loaded as a {what} ({reason}); give {', '.join(EMBEDDED_MODELS)}, the name of "
        "a model on the hub, or a folder with config.json, model.safetensors and a tokenizer. Code that comes with a "
        "model is never run."
    )


def _dropout(family: type[FamilyFacts], hidden: float, attention: float) -> dict[str, Any]:
    fields = dict.fromkeys(family.hidden_dropout_fields, hidden)
    return fields | dict.fromkeys(family.attention_dropout_fields, attention)


def token_limit(config: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """The longest text that an encoder with this configuration reads, in tokens."""
    positions = getattr(config, "max_position_embeddings", None)
    limits = [tokenizer.model_max_length]
    if positions is not None:
        limits.append(positions - family_of(config.model_type).first_position_of(config))
    return min(limits)

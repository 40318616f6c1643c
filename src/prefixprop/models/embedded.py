"""The models that ship with the package: small pretrained encoders that need no network."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from safetensors.torch import load_file
from transformers import AddedToken, PreTrainedModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

from prefixprop.choices import DEFAULT_MODEL
from prefixprop.models.lengthen import lengthen

ASSETS = Path(__file__).parent / "assets"
ORIGINAL = "roberta-mini-512"
WEIGHTS, CONFIG, TOKENIZER = (
    f"{ORIGINAL}/{name}" for name in ("model.int8.safetensors", "config.json", "tokenizer.json")
)
DIFFERENCES = "differences.int4.safetensors"  # of an encoder that was made from the original
GROUP = 32  # consecutive values of a row that share a scale there
LONG, WINDOW = 4096, 512

_GLOBAL = re.compile(r"(attention\.self\.(?:query|key|value))\.")

# What the classes of transformers are called behind the name of the family.
_HEADS = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "MASKED_LM": "ForMaskedLM",
    "FEATURE_EXTRACTION": "Model",
}

# The rest of the config describes the pretrained weights and cannot be chosen.
_OVERRIDABLE = (
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
)


@dataclass(frozen=True)
class EmbeddedModel:
    """Builds models on the encoder that ships with the package, each call a fresh one in `eval()` mode.

    `model = factory("SEQ_CLS", num_labels=3)` has the pretrained encoder and a newly initialised head, which
    `torch.manual_seed` makes reproducible. Models share no memory, and a factory holds no weights: it costs
    nothing to keep, to copy or to send to another process.

    Attributes:
        name: What the model is called on the command line and in reports.
        noted: What it is called in adapters.
        max_length: The longest text in tokens, `<s>` and `</s>` included.
        attention_window: How many neighbours a token sees in the Longformer; None for full attention.
        trained: Whether it was trained further once it was lengthened.
    """

    name: str
    noted: str
    max_length: int = LONG
    attention_window: int | None = WINDOW
    trained: bool = True

    @property
    def model_type(self) -> str:
        """The `config.model_type` of its models."""
        return "roberta" if self.attention_window is None else "longformer"

    def __call__(self, task: str = "SEQ_CLS", **config_overrides: Any) -> PreTrainedModel:
        """Build a model for `task`: SEQ_CLS, TOKEN_CLS, QUESTION_ANS, MASKED_LM, or FEATURE_EXTRACTION for none.

        `config_overrides` sets labels (`num_labels`, `id2label`, `label2id`, `problem_type`), dropout
        (`hidden_dropout_prob`, `attention_probs_dropout_prob`), the head's `initializer_range`, and what is
        returned (`output_attentions`, `output_hidden_states`, `return_dict`).
        """
        if task not in _HEADS:
            raise ValueError(f"unknown task {task!r}: choose one of {', '.join(_HEADS)}")
        encoder = _pretrained_encoder(config_overrides)
        if self.attention_window is not None:
            encoder = lengthen(encoder, self.max_length, self.attention_window)
        if self.trained:
            add_difference(encoder, ASSETS / self.name / DIFFERENCES)
        model_class = getattr(transformers, f"{self.model_type.capitalize()}{_HEADS[task]}")
        model = encoder if isinstance(encoder, model_class) else _with_new_head(encoder, model_class)
        model.name_or_path = model.config.name_or_path = self.noted
        return model.eval()

    def from_pretrained(self, task: str = "SEQ_CLS", **options: Any) -> PreTrainedModel:
        """Build a model with all options of transformers' `from_pretrained`, such as `dtype` and `device_map`."""
        model = self(task, **{name: options.pop(name) for name in _OVERRIDABLE if name in options})
        if task == "FEATURE_EXTRACTION":
            options["add_pooling_layer"] = False
        loaded = type(model).from_pretrained(None, config=model.config, state_dict=model.state_dict(), **options)
        loaded.name_or_path = loaded.config.name_or_path = self.noted
        return loaded


# Weights that change get a new noted name, so that an adapter never meets other weights than it was trained on.
_MODELS = (
    EmbeddedModel("longformer-mini-4096", "prefixprop/longformer-mini-4096-2"),
    EmbeddedModel("longformer-mini-4096-mlm", "prefixprop/longformer-mini-4096-mlm"),
    EmbeddedModel(ORIGINAL, ORIGINAL, max_length=512, attention_window=None, trained=False),
)
EMBEDDED = {model.name: model for model in _MODELS}
NOTED = {model.noted: model for model in _MODELS}


def load_default() -> tuple[EmbeddedModel, PreTrainedTokenizerFast]:
    """Return a factory of models on the pretrained encoder that ships with the package, and its tokenizer.

    The models are Longformers for 4096 tokens, with windows of 512. Nothing is downloaded.

    >>> factory, tokenizer = load_default()
    >>> model = factory("SEQ_CLS", num_labels=2)
    """
    return load_embedded(DEFAULT_MODEL)


def load_embedded(name: str) -> tuple[EmbeddedModel, PreTrainedTokenizerFast]:
    """Return a factory of models on one of the encoders that ship with the package, and its tokenizer.

    >>> factory, tokenizer = load_embedded("longformer-mini-4096-mlm")
    """
    if name not in EMBEDDED:
        raise ValueError(f"There is no model {name!r} in the package; choose one of {', '.join(EMBEDDED)}.")
    factory = EMBEDDED[name]
    return factory, load_tokenizer(factory.max_length)


def load_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(ASSETS / TOKENIZER),
        bos_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        cls_token="<s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
        model_max_length=max_length,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
    )


def _pretrained_encoder(config_overrides: dict[str, Any]) -> PreTrainedModel:
    """The encoder as it was pretrained: RoBERTa without a pooler, for 512 tokens."""
    if fixed := sorted(config_overrides.keys() - set(_OVERRIDABLE)):  # a config would keep a misspelt name
        raise TypeError(f"cannot override {', '.join(fixed)}: choose from {', '.join(_OVERRIDABLE)}")
    stored_config = json.loads((ASSETS / CONFIG).read_text(encoding="utf-8"))
    config = RobertaConfig.from_dict({**stored_config, "architectures": None, **config_overrides})
    with init_empty_weights(include_buffers=False):
        encoder = RobertaModel(config, add_pooling_layer=False)
    stored = load_file(ASSETS / WEIGHTS)
    weights = {
        # cloned, so that no parameter is a view into the mapped file
        name: dequantise(tensor, stored[f"{name}_scale"]) if tensor.dtype == torch.int8 else tensor.clone()
        for name, tensor in stored.items()
        if not name.endswith("_scale")
    }
    encoder.load_state_dict(weights, strict=True, assign=True)
    return encoder


def dequantise(matrix: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiply each run of consecutive int8 values by its scale: a row has as many runs as scales."""
    return (matrix.unflatten(-1, (scales.shape[-1], -1)) * scales.unsqueeze(-1)).flatten(-2)


def lengthened_original() -> PreTrainedModel:
    """roberta-mini-512 as a Longformer without a head, before any training."""
    return lengthen(_pretrained_encoder({}), LONG, WINDOW).eval()


def add_difference(encoder: PreTrainedModel, path: Path) -> PreTrainedModel:
    """Add to the weights of the lengthened original what training changed; query, key and value are also global.

    A matrix `X` is a difference of four bits a value, two values in a byte, with a float16 scale in `X_scale` for
    every `GROUP` values of a row; any other weight is stored as it is.
    """
    stored = load_file(path)
    weights = encoder.state_dict()
    of_byte = torch.tensor([[byte & 15, byte >> 4] for byte in range(256)], dtype=torch.float32) - 8
    with torch.no_grad():
        for name, tensor in stored.items():
            if name.endswith("_scale"):
                continue
            targets = [weights[target] for target in {name, _GLOBAL.sub(r"\1_global.", name)}]
            if tensor.dtype == torch.uint8:
                pairs = torch.nn.functional.embedding(tensor.int(), of_byte)  # ten times as fast as shifting bits
                difference = dequantise(pairs.flatten(-2), stored[f"{name}_scale"].float())
                for target in targets:
                    target += difference
            else:
                for target in targets:
                    target.copy_(tensor)
    return encoder


def _with_new_head(encoder: PreTrainedModel, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    """Put `encoder` under a head initialised as transformers does, without initialising another encoder."""
    with init_empty_weights(include_buffers=False):
        model = model_class(encoder.config)
    setattr(model, model.base_model_prefix, encoder)
    for head in model.children():
        if head is not encoder:
            head.to_empty(device="cpu").apply(model._init_weights)
    model.tie_weights()
    return model

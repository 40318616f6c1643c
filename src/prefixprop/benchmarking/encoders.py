"""Encoders of known sizes with random weights: what they compute does not matter, only how long it takes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import LongformerConfig, ModernBertConfig, PretrainedConfig

from prefixprop.choices import MODEL_FAMILIES, MODEL_SIZES

VOCABULARY = 50_265
FIRST_WORD = 5  # below are special tokens

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class EncoderSize:
    """The dimensions of a Longformer or a ModernBERT."""

    hidden: int
    layers: int
    heads: int
    window: int = 512
    family: str = "longformer"

    def config(self, longest: int, dropout: float, **options: Any) -> PretrainedConfig:
        if self.family == "modernbert":
            return ModernBertConfig(
                hidden_size=self.hidden,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                intermediate_size=3 * self.hidden // 2,
                max_position_embeddings=longest,
                local_attention=self.window,
                attention_dropout=dropout,
                embedding_dropout=dropout,
                mlp_dropout=dropout,
                **options,
            )
        return LongformerConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.hidden,
            vocab_size=VOCABULARY,
            pad_token_id=1,
            max_position_embeddings=longest + 2,
            attention_window=self.window,
            attention_probs_dropout_prob=dropout,
            hidden_dropout_prob=dropout,
            **options,
        )


_MINI = EncoderSize(hidden=384, layers=6, heads=12)  # the embedded model's
_BASE = EncoderSize(hidden=768, layers=12, heads=12)  # longformer-base's
SIZES = dict(zip(MODEL_SIZES, (_MINI, _BASE), strict=True))
_MODERN_MINI = EncoderSize(hidden=384, layers=6, heads=6, window=128, family="modernbert")
_MODERN_BASE = EncoderSize(hidden=768, layers=22, heads=12, window=128, family="modernbert")  # ModernBERT-base's
_MODERN_SIZES = dict(zip(MODEL_SIZES, (_MODERN_MINI, _MODERN_BASE), strict=True))
FAMILIES = dict(zip(MODEL_FAMILIES, (SIZES, _MODERN_SIZES), strict=True))


def find_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(device: str) -> str:
    """For people: the GPU's name, or how many CPU threads are used."""
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def frozen_on(model: Model, device: str) -> Model:
    """The model, frozen, on the device: in bfloat16 on a GPU, in float32 on the CPU."""
    model = model.requires_grad_(False).to(device)
    return model.to(torch.bfloat16) if device == "cuda" else model


def twin_of(model: Model) -> Model:
    """Another model on the same weights, so that two can be timed in turns in the memory of one."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def random_tokens(batch: int, length: int, device: str) -> dict[str, torch.Tensor]:
    """Input of documents that fill the whole length."""
    tokens = torch.randint(FIRST_WORD, VOCABULARY, (batch, length), device=device)
    return {"input_ids": tokens}

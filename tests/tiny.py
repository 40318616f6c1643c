"""Tiny random models of every supported family, and batches for them."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers import AutoModelForQuestionAnswering as ForQuestionAnswering
from transformers import AutoModelForSequenceClassification as ForSequenceClassification
from transformers import AutoModelForTokenClassification as ForTokenClassification

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig

FAMILIES = ("longformer", "roberta", "bert", "modernbert")
RELATIVES = ("xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm", "electra", "ernie")
HEADS: dict[str, Any] = {
    "SEQ_CLS": ForSequenceClassification,
    "TOKEN_CLS": ForTokenClassification,
    "QUESTION_ANS": ForQuestionAnswering,
    "FEATURE_EXTRACTION": AutoModel,
}
METHODS: dict[str, Any] = {"propagation": PrefixPropagationConfig, "tuning": PrefixTuningConfig}
CONFIGS: dict[str, Any] = METHODS | {"reading": partial(PrefixPropagationConfig, read_only=True)}
VOCABULARY = 97
# Overrides for Triton's interpreter, which is slow.
SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "attention_window": [8, 4],
    "num_attention_heads": 1,
    "hidden_size": 16,
}
ROBERTA_LIKE = ("longformer", "roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm")


def tiny_model(
    model_type: str = "longformer", task: str = "SEQ_CLS", seed: int = 0, **overrides: Any
) -> PreTrainedModel:
    """Three layers, four heads, hidden size 32, no dropout, evaluation mode."""
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 130,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 1 if model_type in ROBERTA_LIKE else 0,
        "num_labels": 2 if task == "QUESTION_ANS" else 3,
    }
    if model_type == "longformer":
        options |= {"attention_window": [8, 16, 8], "sep_token_id": 2}
    if model_type == "modernbert":
        options |= {"local_attention": 8, "global_attn_every_n_layers": 2, "sep_token_id": 2, "cls_token_id": 3}
        options |= {"classifier_pooling": "cls", "eos_token_id": 2, "bos_token_id": 3}
    if model_type == "electra":
        options["embedding_size"] = 24
    config = AutoConfig.for_model(model_type, **(options | overrides))
    torch.manual_seed(seed)
    model = HEADS[task].from_config(config)
    with torch.no_grad():
        # Spread the weights: the usual std of 0.02 makes attention so flat that mistakes hide.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3 / (1 + 2 * (parameter.shape[0] == VOCABULARY)))
    return model.eval()


def batch(model: PreTrainedModel, lengths: list[int], seed: int = 0, left: bool = False) -> dict[str, Tensor]:
    """Random tokens of the given lengths, padded to the longest."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    pad = model.config.pad_token_id
    input_ids = torch.randint(4, VOCABULARY, (len(lengths), longest), generator=generator)
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    if left:
        mask = mask.flip(1)
    input_ids[~mask] = pad
    return {"input_ids": input_ids, "attention_mask": mask.long()}


def for_all_rows(inputs: dict[str, Tensor], count: int = 1) -> dict[str, Tensor]:
    """The same with [CLS], or the first `count` tokens, made global: then the last layer computes all rows."""
    mask = torch.zeros_like(inputs["input_ids"])
    mask[:, :count] = 1
    return dict(inputs, global_attention_mask=mask)


both_methods = pytest.mark.parametrize("method", METHODS)
every_method = pytest.mark.parametrize("method", CONFIGS)
with_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
every_family = pytest.mark.parametrize("family", FAMILIES)


def adapt(model: Any, method: str, task: str | None = "SEQ_CLS", length: int = 4, **options: Any) -> Any:
    """The model with a new adapter, in evaluation mode."""
    return get_peft_model(model, CONFIGS[method](task_type=task, num_virtual_tokens=length, **options)).eval()


def random_lora(**options: Any) -> LoraConfig:
    """LoRA that starts at random, so that it has an effect."""
    return LoraConfig(**{"r": 2, "init_lora_weights": False} | options)


def randomised(model: Any, scale: float = 0.2) -> Any:
    """The model with random numbers added to all that is trained."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn_like(parameter))
    return model


def trained_names(model: Any) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def trained_head(model: Any) -> int:
    """Parameters of the head that are trained: all of them, but for ModernBERT's pretrained dense layer."""
    own = [parameter for name, parameter in model.named_parameters() if "classifier" in name]
    return sum(parameter.numel() for parameter in own if parameter.requires_grad)


def tensors(output: Any) -> dict[str, Tensor]:
    return {name: value for name, value in output.items() if isinstance(value, Tensor)}


def assert_same_bits(output: Any, other: Any) -> None:
    one, two = tensors(output), tensors(other)
    assert one.keys() == two.keys() and one
    assert all(torch.equal(one[name], two[name]) for name in one)

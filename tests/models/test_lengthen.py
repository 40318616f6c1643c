from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import (
    BertForNextSentencePrediction,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    LongformerForMaskedLM,
    LongformerModel,
    PreTrainedModel,
    RobertaForCausalLM,
    RobertaModel,
)

from prefixprop.models import lengthen

WINDOW = 16
WITHIN_WINDOW = WINDOW // 2 + 1  # the longest text in which every token sees every other
ROBERTA_LIKE = ["Roberta", "XLMRoberta", "Camembert", "Data2VecText"]
FAMILIES = [*ROBERTA_LIKE, "Bert"]
HEADS = [
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForMaskedLM",
]
OUTPUTS = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")


def tiny(family: str, head: str, **overrides: Any) -> PreTrainedModel:
    """A model with random weights that are far from their initial values, biases and layer norms included."""
    torch.manual_seed(0)
    settings = {
        "vocab_size": 60,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 32,
        "max_position_embeddings": 20 if family == "Bert" else 22,
        "num_labels": 2 if head == "ForQuestionAnswering" else 3,
        **overrides,
    }
    model = getattr(transformers, family + head)(getattr(transformers, f"{family}Config")(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def batch(model: PreTrainedModel, lengths: tuple[int, ...] = (WITHIN_WINDOW, 5)) -> dict[str, torch.Tensor]:
    """Texts of different lengths, padded on the right."""
    torch.manual_seed(1)
    input_ids = torch.randint(5, model.config.vocab_size, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    input_ids[~mask] = model.config.pad_token_id
    inputs = {"input_ids": input_ids, "attention_mask": mask.long()}
    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {name: value[None] for name, value in inputs.items()}
    return inputs


@torch.no_grad()
def assert_equal_outputs(original: PreTrainedModel, longformer: PreTrainedModel, **inputs: torch.Tensor) -> None:
    """With [CLS] as a global token, and without."""
    expected = original(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].flatten(0, -2).bool()
    for is_global in (True, False):
        first = is_global * (torch.arange(real.shape[1]) == 0).expand_as(inputs["input_ids"]).long()
        actual = longformer(**inputs, global_attention_mask=first, output_hidden_states=True)
        compared = [(expected[name], actual[name]) for name in OUTPUTS if expected.get(name) is not None]
        assert compared and all(actual.get(name) is None for name in OUTPUTS if expected.get(name) is None)
        compared += zip(expected.hidden_states, actual.hidden_states, strict=True)
        for one, other in compared:
            kept = real if one.shape[:2] == real.shape else slice(None)
            torch.testing.assert_close(other[kept], one[kept], atol=1e-5, rtol=0)


CASES: list[tuple[str, str, dict[str, Any], int, tuple[int, ...]]] = [
    *((family, head, {}, WINDOW, (WITHIN_WINDOW, 5)) for family, head in product(FAMILIES, HEADS)),
    *((family, "Model", {}, WINDOW, (WITHIN_WINDOW, WITHIN_WINDOW)) for family in FAMILIES),
    *((family, "Model", {}, 40, (20, 13)) for family in ("Roberta", "Bert")),  # every position of the original
    *((family, "Model", {"type_vocab_size": 2}, WINDOW, (WITHIN_WINDOW,)) for family in ("Roberta", "Bert")),
    ("Roberta", "ForMaskedLM", {"hidden_act": "relu"}, WINDOW, (WITHIN_WINDOW, 5)),
]


@pytest.mark.parametrize(("family", "head", "config", "window", "lengths"), CASES)
def test_equals_the_original_within_the_window(
    family: str, head: str, config: dict[str, Any], window: int, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    original = tiny(family, head, **config)
    longformer = lengthen(original, max_length=64, attention_window=window)
    assert type(longformer).__name__ == f"Longformer{head}"
    layers = longformer.base_model.encoder.layer
    assert longformer.config.attention_window == [window] * 2
    assert [2 * layer.attention.self.one_sided_attn_window_size for layer in layers] == [window] * 2
    inputs = batch(original, lengths)
    if "type_vocab_size" in config:
        inputs["token_type_ids"] = torch.arange(WITHIN_WINDOW)[None] % 2
    assert_equal_outputs(original, longformer, **inputs)
    if head == "ForSequenceClassification":
        longformer.save_pretrained(tmp_path)
        assert_equal_outputs(original, type(longformer).from_pretrained(tmp_path), **inputs)


def test_reads_texts_of_max_length_and_no_more() -> None:
    longformer = lengthen(tiny("Bert", "ForSequenceClassification"), max_length=64, attention_window=WINDOW)
    assert longformer(**batch(longformer, (64,))).logits.isfinite().all()
    with pytest.raises(IndexError):
        longformer(**batch(longformer, (65,)))


@pytest.mark.parametrize(("family", "pad", "filler"), [("Roberta", 1, 0), ("Bert", 3, 4)])
def test_positions_are_repeated_after_those_of_padding(family: str, pad: int, filler: int) -> None:
    original = tiny(family, "Model", pad_token_id=pad)
    rows = original.embeddings.position_embeddings.weight
    padding, own = rows[: len(rows) - 20], rows[-20:]
    longformer = lengthen(original, max_length=50, attention_window=WINDOW)
    longer = longformer.embeddings.position_embeddings.weight
    assert torch.equal(longer, torch.cat([torch.zeros(filler, 24), padding, own, own, own[:10]]))
    assert longformer.config.max_position_embeddings == len(longer) == 50 + pad + 1
    assert_equal_outputs(original, longformer, **batch(original))


@pytest.mark.parametrize("family", ["Roberta", "Bert"])
@pytest.mark.parametrize("head", HEADS)
def test_the_original_is_unchanged_and_shares_no_memory(family: str, head: str) -> None:
    original = tiny(family, head)
    before = {name: weight.clone() for name, weight in original.state_dict().items()}
    config_before, state = original.config.to_dict(), torch.get_rng_state()
    longformer = lengthen(original, max_length=64, attention_window=WINDOW)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        for parameter in longformer.parameters():
            parameter.zero_()
    longformer.config.hidden_dropout_prob = 0.5
    longformer.config.id2label[0] = "changed"

    assert original.config.to_dict() == config_before
    after = original.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    storages = {weight.untyped_storage().data_ptr() for weight in after.values()}
    assert all(weight.untyped_storage().data_ptr() not in storages for weight in longformer.state_dict().values())


@pytest.mark.parametrize("family", ["Roberta", "Bert"])
@pytest.mark.parametrize("tied", [True, False])
def test_output_embeddings_stay_as_tied_as_they_were(family: str, tied: bool) -> None:
    original = tiny(family, "ForMaskedLM", tie_word_embeddings=tied)
    longformer = lengthen(original, max_length=64, attention_window=WINDOW)
    assert isinstance(longformer, LongformerForMaskedLM)
    assert longformer.config.tie_word_embeddings is tied
    assert (longformer.lm_head.decoder.weight is longformer.get_input_embeddings().weight) is tied
    assert (longformer.lm_head.decoder.bias is longformer.lm_head.bias) is tied
    assert_equal_outputs(original, longformer, **batch(original))


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("model_class", [RobertaModel, BertModel])
def test_a_bare_model_has_a_pooler_if_the_original_has(model_class: type[PreTrainedModel], pooler: bool) -> None:
    config = tiny(model_class.__name__.removesuffix("Model"), "Model").config
    original = model_class(config, add_pooling_layer=pooler).eval()
    longformer = lengthen(original, max_length=64, attention_window=WINDOW)
    assert isinstance(longformer, LongformerModel)
    assert (longformer.pooler is not None) is pooler
    assert_equal_outputs(original, longformer, **batch(original))


def test_dtype_mode_and_frozen_weights_carry_over() -> None:
    original = tiny("Bert", "ForSequenceClassification").to(torch.bfloat16).train()
    original.bert.embeddings.requires_grad_(False)
    longformer = lengthen(original, max_length=64, attention_window=WINDOW)
    assert longformer.dtype == torch.bfloat16 and longformer.config.dtype == torch.bfloat16
    assert all(module.training for module in longformer.modules())
    parameters = dict(longformer.named_parameters())
    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    assert frozen == {name for name in parameters if name.startswith("longformer.embeddings.")}
    assert not any(module.training for module in lengthen(original.eval(), 64, WINDOW).modules())


def test_config_carries_over() -> None:
    settings = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "hidden_dropout_prob": 0.2, "layer_norm_eps": 1e-6}
    settings |= {"hidden_act": "relu", "eos_token_id": 4, "a_note_of_the_user": "kept"}
    original = tiny("Roberta", "ForSequenceClassification", name_or_path="somewhere/base", **settings)
    config = lengthen(original, max_length=64, attention_window=WINDOW).config
    assert {name: getattr(config, name) for name in settings} == settings
    assert (config.name_or_path, config.sep_token_id, config.max_position_embeddings) == ("somewhere/base", 4, 66)
    for separator in (None, 7):  # BERT names none unless its config does
        assert lengthen(tiny("Bert", "Model", sep_token_id=separator), 64, WINDOW).config.sep_token_id == separator


def test_rejects_other_models_and_heads() -> None:
    distilbert = DistilBertModel(DistilBertConfig(vocab_size=60, dim=24, n_layers=1, n_heads=3, hidden_dim=32))
    next_sentence = BertForNextSentencePrediction(tiny("Bert", "Model").config)
    causal = RobertaForCausalLM(tiny("Roberta", "Model").config)
    longformer = lengthen(tiny("Roberta", "Model"), 64, WINDOW)
    for model in (distilbert, next_sentence, causal, longformer):
        with pytest.raises(ValueError, match=f"{type(model).__name__}.*data2vec-text, bert.*ForMultipleChoice"):
            lengthen(model)
    with pytest.raises(TypeError, match="transformers library, not Linear"):
        lengthen(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("family", "head", "options", "length", "message"),
    [
        ("Roberta", "Model", {}, 19, "shorter than the 20 tokens"),
        ("Bert", "Model", {}, 19, "shorter than the 20 tokens"),
        ("Bert", "ForMaskedLM", {"hidden_act": "relu"}, 64, "always uses gelu, this one 'relu'"),
    ],
)
def test_rejects_what_longformer_lacks(family: str, head: str, options: dict, length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lengthen(tiny(family, head, **options), length, WINDOW)


def test_rejects_weights_without_a_counterpart() -> None:
    adapted = get_peft_model(tiny("Roberta", "ForTokenClassification"), LoraConfig(target_modules=["query"]))
    with pytest.raises(ValueError, match=r"lora_A.* without a counterpart"):
        lengthen(adapted.get_base_model(), 64, WINDOW)
    model = tiny("Roberta", "ForTokenClassification")
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"extra\.bias, extra\.weight"):
        lengthen(model, 64, WINDOW)

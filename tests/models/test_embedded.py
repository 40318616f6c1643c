from __future__ import annotations

import dataclasses
import pickle
import socket
import time

import pytest
import torch
from peft import TaskType
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from prefixprop.choices import DEFAULT_MODEL, EMBEDDED_MODELS
from prefixprop.models import embedded, load_default, load_embedded
from prefixprop.models.embedded import EmbeddedModel, lengthened_original

from tiny import for_all_rows

HEADED = {"SEQ_CLS": "classifier", "TOKEN_CLS": "classifier", "QUESTION_ANS": "qa_outputs"}
HEADS = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "FEATURE_EXTRACTION": "Model",
}
TEXT = "The committee met on Tuesday to discuss the budget, and nobody agreed on anything at all. "


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_default()[1]


def narrow_factory() -> EmbeddedModel:
    """The Longformer with small windows: it pads short texts to one window, so this is much faster."""
    return dataclasses.replace(load_default()[0], attention_window=32)


@pytest.fixture(scope="module")
def narrow_encoder() -> PreTrainedModel:
    return narrow_factory()("FEATURE_EXTRACTION")


@pytest.fixture(scope="module")
def short_encoder() -> PreTrainedModel:
    return load_embedded("roberta-mini-512")[0]("FEATURE_EXTRACTION")


def head_weights(model: PreTrainedModel, head: str) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in model.state_dict().items() if name.startswith(f"{head}.")}


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("task", HEADS)
def test_builds_every_task_ready_to_use(task: str, long: bool, tokenizer: PreTrainedTokenizerFast) -> None:
    model = (narrow_factory() if long else load_embedded("roberta-mini-512")[0])(task)
    assert type(model).__name__ == ("Longformer" if long else "Roberta") + HEADS[task]
    assert not any(module.training for module in model.modules())
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.base_model.pooler is None
    assert model.base_model.config is model.config
    name = load_embedded(DEFAULT_MODEL)[0].noted if long else "roberta-mini-512"
    assert model.config.name_or_path == model.name_or_path == name
    pair = tokenizer(["Who met?", "When?"], [TEXT, TEXT[:40]], return_tensors="pt", padding=True)
    with torch.no_grad():
        assert model(**pair)[0].isfinite().all()


@pytest.mark.parametrize(("name", "length"), [(DEFAULT_MODEL, 4096), ("roberta-mini-512", 512)])
def test_factories_open_no_socket_and_their_models_are_independent(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for opens in ("socket", "create_connection"):
        monkeypatch.setattr(socket, opens, lambda *_, **__: pytest.fail("the embedded model opens a socket"))
    start = time.process_time()  # which does not depend on what else the machine does
    factory, tokenizer = load_embedded(name)
    one, other = factory(TaskType.SEQ_CLS), factory()
    tokenizer("No network here.")
    assert time.process_time() - start < 10
    assert (factory.name, factory.max_length, tokenizer.model_max_length) == (name, length, length)
    assert one.config.max_position_embeddings == length + 2
    assert getattr(one.config, "attention_window", None) == ([512] * 6 if length == 4096 else None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        factory.name = "another"
    assert pickle.loads(pickle.dumps(factory)) == factory

    storages = [weight.untyped_storage() for model in (one, other) for weight in model.state_dict().values()]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    assert all(  # nothing keeps the whole file in memory
        weight.untyped_storage().nbytes() == weight.nbytes for weight in one.state_dict().values()
    )
    one.config.num_labels = 7
    assert other.config.num_labels == 2


@torch.no_grad()
def test_long_and_short_encoder_agree_within_the_window(tokenizer: PreTrainedTokenizerFast) -> None:
    long_encoder, short_encoder = lengthened_original(), load_embedded("roberta-mini-512")[0]("FEATURE_EXTRACTION")
    inputs = tokenizer([TEXT * 30, TEXT], truncation=True, max_length=257, padding=True, return_tensors="pt")
    assert inputs["input_ids"].shape[1] == 257
    real = inputs["attention_mask"].bool()
    # In float64, which shows whether the two models are the same function: the last layer norm magnifies rounding.
    expected = short_encoder.double()(**inputs, output_hidden_states=True).hidden_states
    actual = long_encoder.double()(**for_all_rows(inputs), output_hidden_states=True).hidden_states
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(other[real], one[real], atol=2e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("encoder", ["narrow_encoder", "short_encoder"])
def test_related_sentences_are_closer(
    encoder: str, tokenizer: PreTrainedTokenizerFast, request: pytest.FixtureRequest
) -> None:
    sentences = [
        "A man is playing the guitar on stage.",
        "Someone performs music with a guitar.",
        "The central bank raised interest rates again.",
        "Monetary policy was tightened by the central bank.",
    ]
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    first_states = request.getfixturevalue(encoder)(**inputs).last_hidden_state[:, 0]
    unit = torch.nn.functional.normalize(first_states, dim=-1)
    similarity = unit @ unit.T
    related = torch.stack([similarity[0, 1], similarity[2, 3]])
    unrelated = similarity[:2, 2:].flatten()
    assert related.min() > unrelated.max() + 0.1


def test_tokenizer_writes_texts_and_pairs_as_roberta_does(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer("Hello world")["input_ids"] == [0, 31414, 232, 2]
    assert tokenizer("Hello", " world")["input_ids"] == [0, 31414, 2, 2, 232, 2]
    assert tokenizer("Paris is <mask>.")["input_ids"][-3:] == [50264, 4, 2]
    assert set(tokenizer("Hello")) == {"input_ids", "attention_mask"}
    padded = tokenizer(["Hello world", "Hello"], padding=True)
    assert padded["input_ids"][1] == [0, 31414, 2, 1] and padded["attention_mask"][1] == [1, 1, 1, 0]
    special = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id)
    assert special == (0, 2, 3) and len(tokenizer) == 50265


@pytest.mark.parametrize(
    ("task", "name"), [("SEQ_CLS", DEFAULT_MODEL), *((task, "roberta-mini-512") for task in HEADED)]
)
def test_heads_are_initialised_as_transformers_does_from_the_seed(task: str, name: str) -> None:
    factory, _ = load_embedded(name)
    built = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        built.append(head_weights(factory(task), HEADED[task]))
    first, again, other = built
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        if name.endswith("bias"):
            assert not weight.any()
        else:
            assert not torch.equal(weight, other[name])
            assert weight.std().item() == pytest.approx(0.02, rel=0.15)


def test_overrides_reach_the_model() -> None:
    labels = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    options = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.5}
    model = load_default()[0]("TOKEN_CLS", **labels, **options)
    assert model.classifier.weight.std().item() == pytest.approx(0.5, rel=0.1)
    assert model.classifier.out_features == model.num_labels == model.config.num_labels == 3
    assert {name: getattr(model.config, name) for name in labels} == labels
    assert model.dropout.p == model.base_model.embeddings.dropout.p == 0.25
    assert model.config.attention_probs_dropout_prob == 0.0


def test_bad_overrides_and_tasks() -> None:
    with pytest.raises(TypeError, match=r"override hiden_dropout_prob: .*, hidden_dropout_prob"):
        load_default()[0]("SEQ_CLS", hiden_dropout_prob=0.2)
    with pytest.raises(ValueError, match="SEQ_CLS, TOKEN_CLS, QUESTION_ANS, MASKED_LM, FEATURE_EXTRACTION"):
        load_default()[0]("SEQ_CLASS")


def test_weights_are_the_stored_ones_times_their_scales(short_encoder: PreTrainedModel) -> None:
    stored = load_file(embedded.ASSETS / embedded.WEIGHTS)
    name, norm = "encoder.layer.3.output.dense.weight", "embeddings.LayerNorm.weight"
    scales = stored[f"{name}_scale"].repeat_interleave(64, dim=1)
    assert torch.equal(short_encoder.get_parameter(name), stored[name].float() * scales)
    assert torch.equal(short_encoder.get_parameter(norm), stored[norm])


@pytest.mark.parametrize("name", ["longformer-mini-4096", "longformer-mini-4096-mlm"])
def test_a_trained_encoder_is_the_original_and_what_training_changed(name: str) -> None:
    trained, original = load_embedded(name)[0]("FEATURE_EXTRACTION").state_dict(), lengthened_original().state_dict()
    changed = {key for key in trained if not torch.equal(trained[key], original[key])}
    same = set(trained) - changed
    assert "embeddings.word_embeddings.weight" in same, "shared by all"
    assert len(changed) > len(same)
    for key in trained:
        if "_global." in key:
            assert torch.equal(trained[key], trained[key.replace("_global.", ".")]), key


def test_models_are_found_by_name_and_by_what_adapters_note() -> None:
    assert tuple(embedded.EMBEDDED) == EMBEDDED_MODELS
    assert embedded.NOTED["prefixprop/longformer-mini-4096-2"] is load_embedded("longformer-mini-4096")[0]
    with pytest.raises(ValueError, match="longformer-mini-4096-mlm"):
        load_embedded("longformer-maxi")

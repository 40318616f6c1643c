"""Many adapters in one batch: every document gets what a pass of its own adapter alone gives it."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import LongformerModel

from prefixprop import attention

from tiny import (
    HEADS,
    METHODS,
    SMALL,
    assert_same_bits,
    batch,
    both_methods,
    every_family,
    for_all_rows,
    randomised,
    tiny_model,
)

BASE = "__base__"
LENGTHS = [25, 14, 9, 25, 13, 21, 6, 17]
SHARED: dict[str, dict[str, Any]] = {"one": {}, "two": {}, "gated": {"gate": True}, "lora": {"lora": True}}
ADAPTERS: dict[str, dict[str, Any]] = SHARED | {
    "lora too": {"lora": LoraConfig(r=3, lora_alpha=5, init_lora_weights=False), "gate": True},
    "longer": {"num_virtual_tokens": 6},
    "reference": {"layout": "reference"},
    "exp": {"kernel": "exp", "alpha": 0.5},
    "exp too": {"kernel": "exp", "alpha": 0.5},
    "layer": {"kernel": "rbf", "alpha_mode": "layer"},
    "layer too": {"kernel": "rbf", "alpha_mode": "layer", "lora": True},
    "head": {"kernel": "poly", "alpha_mode": "head"},
    "head too": {"kernel": "poly", "alpha_mode": "head"},
    "query": {"kernel": "linear", "alpha_mode": "query", "alpha": 0.6},
    "query too": {"kernel": "linear", "alpha_mode": "query", "alpha": 0.6},
}


OF_PROPAGATION: dict[str, dict[str, Any]] = {
    "reader": {"read_only": True},
    "reader too": {"read_only": True},
    "gated reader": {"read_only": True, "gate": True},
    "longer reader": {"read_only": True, "num_virtual_tokens": 6},
    "pooled": {"pooling": "prefix"},
    "gated, pooled": {"pooling": "prefix", "gate": True},
    "lora, pooled": {"pooling": "prefix", "lora": True},
}


def with_adapters(
    model: Any, method: str, adapters: dict[str, dict[str, Any]] = ADAPTERS, task: str | None = "SEQ_CLS"
) -> Any:
    """The model with these adapters, all of whose numbers are random."""
    for name, own in adapters.items():
        options = {"task_type": task, "num_virtual_tokens": 4} | copy.deepcopy(own)  # peft writes into a LoraConfig
        if options.get("lora") is True:
            options["lora"] = LoraConfig(r=2, init_lora_weights=False)
        if hasattr(model, "peft_config"):
            model.add_adapter(name, METHODS[method](**options))
        else:
            model = get_peft_model(model, METHODS[method](**options), adapter_name=name)
        model.set_adapter(name)
        randomised(model)
    return model.eval()


def alone(model: Any, name: str, inputs: dict[str, Tensor], **options: Any) -> Any:
    """What the model says of a whole batch with one adapter."""
    if name == BASE:
        with model.disable_adapter():
            return model(**inputs, **options)
    before = model.active_adapter
    model.set_adapter(name)
    output = model(**inputs, **options)
    model.set_adapter(before)
    return output


def rows(output: Any, document: int, real: Tensor) -> Tensor:
    """All that an output has about one document's real tokens, in one row; classes it has not are left out."""
    found = []
    for tensor in tree_leaves(dict(output)):
        own = tensor[document]
        if own.dim() > 1 and own.shape[-2] == len(real):  # not the logits; of attentions, rows of each head
            own = own[..., real, :]
        found.append(own[~own.isinf()].flatten())
    return torch.cat(found)


@torch.no_grad()
def assert_as_alone(
    model: Any, names: list[str], inputs: dict[str, Tensor], tolerance: float = 1e-6, **options: Any
) -> Any:
    """Logits and the states of all layers, equal to 1e-6 of their length, which is what float32 has."""
    options = {"output_hidden_states": True} | options
    mixed = model(**inputs, adapter_names=names, **options)
    found, expected = [], []
    for name in set(names):
        places = [place for place, other in enumerate(names) if other == name]
        own = alone(model, name, {key: value[places] for key, value in inputs.items()}, **options)
        for document, place in enumerate(places):
            real = inputs["attention_mask"][place].bool()
            found.append(rows(mixed, place, real))
            expected.append(rows(own, document, real))
    difference = torch.cat(found) - torch.cat(expected)
    assert float(difference.norm() / torch.cat(expected).norm()) < tolerance
    return mixed


@pytest.mark.parametrize(("method", "left"), [("propagation", False), ("tuning", True)])
@every_family
def test_each_document_is_as_in_a_pass_of_its_own_adapter(family: str, method: str, left: bool) -> None:
    """With padding on the left, by transformers' eager attention, which returns its weights."""
    adapters = ADAPTERS | (OF_PROPAGATION if method == "propagation" else {})
    plain, asked = tiny_model(family), {"output_attentions": left and family != "longformer"}
    if asked["output_attentions"]:
        plain.set_attn_implementation("eager")
    model = with_adapters(plain, method, adapters)
    names = [*adapters, BASE]
    inputs = batch(model, [LENGTHS[place % len(LENGTHS)] for place in range(len(names))], left=left)
    mixed = assert_as_alone(model, names, inputs, **asked)
    assert len(mixed.attentions or ()) == 3 * asked["output_attentions"]
    # Few numbers, after all layers; with nobody to read the states, the last layer is shorter on Longformer.
    assert_as_alone(model, names[::-1], inputs, tolerance=1e-5, output_hidden_states=False)
    # All of them have an effect, or a mix-up would not show.
    same = {name: inputs[name][:1].expand(len(names), -1) for name in inputs}
    with torch.no_grad():
        logits = model(**same, adapter_names=names).logits
    assert torch.pdist(logits).min() > 1e-3


@pytest.mark.parametrize(
    ("family", "backend"), [("longformer", "triton"), ("modernbert", "triton"), ("longformer", "sdpa")]
)
@both_methods
def test_on_every_backend(family: str, backend: str, method: str) -> None:
    overrides = SMALL | {"num_hidden_layers": 1, "attention_window": [8]}
    groups: list[tuple[str, ...]] = [("one", "lora", "lora too"), ("head too", "head")]
    model = with_adapters(tiny_model(family, **overrides), method, {name: ADAPTERS[name] for name in sum(groups, ())})
    attention.install(model, backend)
    for names in groups:
        assert_as_alone(model, list(names), batch(model, [6, 5, 3][: len(names)]))


@pytest.mark.parametrize(
    ("task", "method"), list(zip([*HEADS, None], [*METHODS, *METHODS, "propagation"], strict=True))
)
@every_family
def test_under_every_head(family: str, method: str, task: str | None) -> None:
    adapters = {name: ADAPTERS[name] for name in ("one", "two", "longer", "lora")}
    model = with_adapters(tiny_model(family, task or "FEATURE_EXTRACTION"), method, adapters, task)
    inputs = batch(model, LENGTHS[:6])
    if family == "longformer":
        inputs = for_all_rows(inputs, 3)
    names = ["one", "longer", "two", BASE, "lora", "one"]
    mixed = assert_as_alone(model, names, inputs)
    as_tuple = model(**inputs, adapter_names=names, output_hidden_states=True, return_dict=False)
    torch.testing.assert_close(as_tuple[0], mixed[0])
    assert len(as_tuple) == len(mixed)


@cache
def model_for_properties(method: str) -> Any:
    return with_adapters(tiny_model(), method)


@settings(max_examples=10)
@given(names=st.lists(st.sampled_from([*ADAPTERS, BASE]), min_size=1, max_size=6), left=st.booleans(), data=st.data())
@both_methods
def test_any_adapters_in_any_order(method: str, names: list[str], left: bool, data: st.DataObject) -> None:
    model = model_for_properties(method)
    lengths = data.draw(st.lists(st.integers(3, 30), min_size=len(names), max_size=len(names)))
    assert_as_alone(model, names, batch(model, lengths, left=left))


@pytest.mark.parametrize(
    "special",
    [
        {"use_dora": True},
        {"trainable_token_indices": {"word_embeddings": [5, 6]}},
        {"target_modules": ["word_embeddings"]},
    ],
)
def test_any_lora_that_peft_has(special: dict[str, Any]) -> None:
    lora = {"lora": LoraConfig(r=2, init_lora_weights=False, **{"target_modules": ["query"]} | special)}
    model = with_adapters(tiny_model(), "propagation", {"one": {}, "special": lora, "special too": lora, "two": {}})
    names = ["special", "one", "special too", BASE, "two", "special"]
    assert_as_alone(model, names, batch(model, LENGTHS[:6]))


@pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS"])
@every_family
def test_heads_of_different_sizes(family: str, task: str, tmp_path: Path) -> None:
    """Classes that an adapter has not get -inf, so that nobody chooses them and softmax gives them nothing."""
    for classes in (3, 5, 2):
        saved = with_adapters(tiny_model(family, task, num_labels=classes), "propagation", {"default": {}}, task)
        saved.save_pretrained(tmp_path / str(classes))
    model = with_adapters(
        tiny_model(family, task), "propagation", {"of 3": {}, "other": {"num_virtual_tokens": 2}}, task
    )
    for classes in (5, 2):
        model.load_adapter(tmp_path / str(classes), f"of {classes}")
    model.eval()
    names = ["of 5", "of 3", "of 2", "of 5", BASE, "other"]
    inputs = batch(model, LENGTHS[:6])
    logits = assert_as_alone(model, names, inputs).logits
    assert alone(model, "of 5", inputs).logits.shape[-1] == logits.shape[-1] == 5
    sizes = [int(logits[place].isfinite().sum(dim=-1).max()) for place in range(6)]
    assert sizes == [5, 3, 2, 5, 3, 3]
    probabilities = logits.softmax(dim=-1)
    assert probabilities.isfinite().all() and not probabilities[2, ..., 2:].any()


@both_methods
def test_adapters_of_one_structure_are_one_pass(method: str) -> None:
    model, passes = with_adapters(tiny_model(), method), list[int]()
    model.get_input_embeddings().register_forward_hook(lambda _, args, __: passes.append(len(args[0])))
    inputs = batch(model, LENGTHS)
    model(**inputs, adapter_names=[*SHARED] * 2)
    assert passes == [8]
    model(**inputs, adapter_names=["exp", "one", "exp too", BASE, "two", BASE, "one", "head"])
    assert sorted(passes[1:]) == [1, 2, 2, 3]


@both_methods
def test_nothing_of_it_stays(method: str) -> None:
    model = with_adapters(tiny_model(), method)
    model.set_adapter("two")
    inputs = batch(model, LENGTHS[:3])
    trained = [parameter.requires_grad for parameter in model.parameters()]
    expected, inner = model(**inputs), model.base_model.model
    model(**inputs, adapter_names=["one", BASE, "lora"])
    with pytest.raises(ValueError, match="too long"):
        model(**batch(model, [140, 9]), adapter_names=["one", "lora"])
    assert model.base_model.model is inner and model.active_adapter == "two"
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    assert_same_bits(model(**inputs), expected)
    with model.disable_adapter():
        assert_same_bits(model(**inputs, adapter_names=["one"] * 3), alone(model, BASE, inputs))


def test_a_compiled_model_takes_it() -> None:
    model = with_adapters(tiny_model("roberta", num_hidden_layers=1), "propagation", {"one": {}, "two": {}})
    inputs, names = batch(model, LENGTHS[:2]), ["two", "one"]
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(**inputs)
        assert_same_bits(compiled(**inputs, adapter_names=names), model(**inputs, adapter_names=names))


def test_a_bare_encoder_without_a_pooler_as_a_tuple() -> None:
    bare = LongformerModel(tiny_model().config, add_pooling_layer=False).eval()
    model = with_adapters(bare, "tuning", {"one": {}, "longer": {"num_virtual_tokens": 6}}, None)
    states, pooled = model(**batch(model, [9, 9]), adapter_names=["one", "longer"], return_dict=False)
    assert states.shape == (2, 9, 32) and pooled is None


def test_gradients_reach_each_document_s_prefix() -> None:
    """Of a model in evaluation mode, as peft wants it."""
    model = with_adapters(tiny_model(), "propagation", {"one": {}, "two": {}, "three": {}})
    for name in ("one", "two", "three"):
        model.get_prefix(name).requires_grad_()
    inputs = batch(model, LENGTHS[:2])
    model(**inputs, adapter_names=["two", "one"]).logits[0].sum().backward()
    assert model.get_prefix("two").grad.abs().sum() > 0 and not model.get_prefix("one").grad.any()


def test_bad_input_is_answered_in_plain_words() -> None:
    model = with_adapters(tiny_model(), "propagation", {"one": {}, "lora": {"lora": True}})
    inputs = batch(model, [9, 9])
    ones = inputs | {"adapter_names": ["one", "one"]}
    for wrong, message in (
        (ones | {"adapter_names": ["one"] * 3}, "3 names for 2 documents; give one name for each"),
        (ones | {"adapter_names": ["one", "tow"]}, "no adapter 'tow'; there are: one, lora, and __base__ for none"),
        ({"adapter_names": ["one"]}, "needs input_ids or inputs_embeds"),
        (ones | {"adapter_names": "one"}, "must be a list with the name of an adapter for each document"),
        (ones | {"labels": torch.tensor([0, 1])}, "leave the labels out"),
        (ones | {"question_of_chunk": torch.tensor([0, 0])}, "does not work with a model that scores candidates"),
    ):
        with pytest.raises(ValueError, match=message):
            model(**wrong)
    with pytest.raises(ValueError, match=r"in training mode; call eval\(\) first"):
        model.train()(**ones)
    model.eval().set_adapter("lora")
    model.merge_adapter()
    with pytest.raises(ValueError, match=r"call unmerge_adapter\(\) first"):
        model(**ones)


def test_attentions_that_cannot_be_one_tensor() -> None:
    """Longformer's have a column for each global token."""
    model = with_adapters(tiny_model(), "tuning", {"one": {}, "longer": {"num_virtual_tokens": 6}})
    inputs = batch(model, [20, 20])
    inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
    inputs["global_attention_mask"][0, :3] = inputs["global_attention_mask"][1, :1] = 1
    with pytest.raises(ValueError, match=r"differ in shape .attentions.*once for each adapter"):
        model(**inputs, adapter_names=["one", "longer"], output_attentions=True)

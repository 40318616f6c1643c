"""LoRA around frozen layers that are computed in one piece, against the same layers computed part by part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from prefixprop import attention

from one_layer import assert_same_states, states_and_gradients
from tiny import adapt, batch, for_all_rows, tiny_model

pytest.importorskip("triton")
from prefixprop.attention.triton import longformer, lora

from known_masks import Masked, mask_of, recorded_seeds

PROJECTIONS = ["query", "key", "value", "key_global", "value_global", "query_global"]
EVERYTHING = [*PROJECTIONS, "attention.output.dense", "intermediate.dense", "layer.0.output.dense"]


def small_model(**overrides: Any) -> Any:
    sizes = {"num_hidden_layers": 1, "attention_window": [4], "num_attention_heads": 1, "hidden_size": 16}
    return tiny_model(task="FEATURE_EXTRACTION", **(sizes | {"intermediate_size": 24} | overrides))


def composed(targets: list[str], method: str | None = "propagation", options: Any = None, **config: Any) -> Any:
    """LoRA that starts at random, beside a prefix or alone."""
    config = {"r": 3, "lora_alpha": 2, "init_lora_weights": False, "target_modules": targets} | config
    if method is None:
        return get_peft_model(small_model(), LoraConfig(**config)).eval()
    prefix = {"length": 2, "prefix_dropout": 0.0} | (options or {})
    return adapt(small_model(), method, "FEATURE_EXTRACTION", lora=LoraConfig(**config), **prefix)


def outcome(model: Any) -> dict[str, Tensor]:
    inputs = for_all_rows(batch(model, [9, 5]))
    return states_and_gradients(model, inputs, inputs["attention_mask"].bool())


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an entry for every layer that is computed in one piece: how many pieces of LoRA are in it."""
    counts: list[int] = []
    run = longformer.run

    def counted(step: Any, *tensors: Any) -> Tensor:
        if isinstance(step, longformer.Block) and step.leave is not None:
            leave = step.leave
            sides = (step.enter.side, leave.attended_side, leave.inner_side, leave.outer_side)
            counts.append(sum(len(side.places) for side in sides if side is not None))
        return run(step, *tensors)

    monkeypatch.setattr(longformer, "run", counted)
    return counts


def layer_of(model: Any) -> Any:
    return model.base_model.model.encoder.layer[0]


def in_parts(model: Any) -> dict[str, Tensor]:
    """The same with the layer computed part by part, because somebody waits for one of them."""
    layer = layer_of(model)
    hooks = [part.register_forward_hook(lambda *_: None) for part in (layer.attention.self, layer.intermediate)]
    found = outcome(model)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize(
    ("targets", "count", "options"),
    [
        (["query", "value"], 2, {"method": None}),
        (EVERYTHING, 9, {"use_rslora": True, "rank_pattern": {"value": 20}}),
        (["key", "query_global"], 2, {"method": "tuning"}),
        (EVERYTHING, 9, {"options": {"kernel": "exp", "alpha": 0.7}}),
    ],
)
def test_as_in_parts(targets: list[str], count: int, options: dict[str, Any], pieces: list[int]) -> None:
    model = composed(targets, **options)
    attention.install(model, "triton")
    found = outcome(model)
    assert pieces == [count]
    trained = [name for name in found if "lora_" in name]
    assert len(trained) == 2 * count and all(found[name].any() for name in trained)
    assert_same_states(found, in_parts(model))
    assert pieces == [count]


def test_around_what_follows_attention_alone(pieces: list[int]) -> None:
    """Then attention may learn."""
    model = composed(["intermediate.dense", "attention.output.dense"])
    layer_of(model).attention.self.key.weight.requires_grad_(True)
    attention.install(model, "triton")
    found = outcome(model)
    assert not pieces
    assert_same_states(found, in_parts(model))


def test_dropout(pieces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer has a mask of its own, the same in backward."""
    model = composed(EVERYTHING, lora_dropout=0.4, rank_pattern={"value": 20})
    layer = layer_of(model)
    by_path = [
        [getattr(layer.attention.self, name) for name in PROJECTIONS],
        [layer.attention.output.dense],
        [layer.intermediate.dense],
        [layer.output.dense],
    ]
    for linear in (linear for path in by_path for linear in path):
        linear.lora_dropout.train()
    drawn = recorded_seeds(monkeypatch, lora)
    attention.install(model, "triton")
    found = outcome(model)
    assert pieces == [9] and len(drawn) == 4
    for path, seeds in zip(by_path, drawn, strict=True):
        for piece, linear in enumerate(path):
            mask = mask_of(seeds, piece, linear.in_features, 0.4)
            assert 0.2 < (mask == 0).float().mean() < 0.6
            linear.lora_dropout["default"] = Masked(mask)
    assert_same_states(found, outcome(model))
    assert pieces == [9]


def test_several_adapters_and_none(pieces: list[int]) -> None:
    model = composed(["query", "dense"], method=None)
    model.add_adapter("other", LoraConfig(r=2, target_modules=["query", "key"], init_lora_weights=False))
    attention.install(model, "triton")
    assert_same_states(outcome(model), in_parts(model))
    model.base_model.set_adapter(["default", "other"])
    assert_same_states(outcome(model), in_parts(model))
    inputs = for_all_rows(batch(model, [9, 9]))
    with torch.no_grad(), model.disable_adapter():
        torch.testing.assert_close(model(**inputs)[0], small_model()(**inputs)[0], atol=1e-5, rtol=1e-5)
    assert pieces == [4, 6, 0]


@pytest.mark.parametrize(
    "config",
    [{"use_dora": True}, {"bias": "lora_only"}, {"lora_bias": True}, {"lora_dropout": 0.5, "r": lora.MOST_RANK + 1}],
)
def test_other_kinds_go_in_parts(config: dict[str, Any], pieces: list[int]) -> None:
    model = composed(["query"], method=None, **config)
    layer_of(model).attention.self.query.lora_dropout.train()
    attention.install(model, "triton")
    outcome(model)
    assert not pieces

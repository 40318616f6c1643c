"""A layer's plan is worked out once, and again after each thing that it depends on: results are those without it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from prefixprop import attention

from one_layer import set_dropout
from tiny import batch, for_all_rows, tiny_model

pytest.importorskip("triton")
from prefixprop.attention.patch import ATTRIBUTE
from prefixprop.attention.triton import block, longformer, modernbert

SMALL: dict[str, dict[str, Any]] = {
    "longformer": {"num_hidden_layers": 1, "attention_window": [4], "num_attention_heads": 1, "hidden_size": 16},
    "modernbert": {
        "num_hidden_layers": 1,
        "layer_types": ["sliding_attention"],
        "local_attention": 4,
        "num_attention_heads": 1,
        "hidden_size": 16,
    },
}
LINEAR = {"longformer": "attention.self.key_global", "modernbert": "attn.Wqkv"}
NORM = {"longformer": "output.LayerNorm", "modernbert": "mlp_norm"}


def encoder(family: str, lora: bool = False) -> Any:
    model = tiny_model(family, task="FEATURE_EXTRACTION", **SMALL[family]).requires_grad_(False)
    if lora:
        targets = ["query", "value_global", "dense"] if family == "longformer" else ["Wqkv", "Wo"]
        config = LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
        model = get_peft_model(model, config)
        model.add_adapter("other", LoraConfig(r=3, target_modules=targets[:1], init_lora_weights=False))
    attention.install(model.eval(), "triton")
    return model


def inner(model: Any) -> Any:
    return model.base_model.model if hasattr(model, "peft_config") else model


def layer_of(model: Any) -> Any:
    return inner(model).encoder.layer[0] if hasattr(inner(model), "encoder") else inner(model).layers[0]


def outcome(model: Any) -> Tensor:
    inputs = batch(model, [7, 4])
    torch.manual_seed(5)
    with torch.no_grad():
        return model(**(for_all_rows(inputs) if hasattr(inner(model), "encoder") else inputs)).last_hidden_state


def without_a_plan(model: Any) -> Tensor:
    """The same with everything worked out anew."""
    getattr(inner(model), ATTRIBUTE).plans.clear()
    return outcome(model)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans that were worked out."""
    plans: list[Any] = []
    for family in (longformer, modernbert):
        work_out = family.plan_of
        monkeypatch.setattr(
            family, "plan_of", lambda *given, work_out=work_out: plans.append(work_out(*given)) or plans[-1]
        )
    return plans


def grown(linear: Any) -> dict[str, Tensor]:
    return {name: tensor * 1.5 for name, tensor in linear.state_dict().items()}


def edit(linear: Any) -> None:
    with torch.no_grad():
        linear.weight.mul_(1.5)


WEIGHT_CHANGES: dict[str, Callable[[Any], Any]] = {
    "data": lambda linear: setattr(linear.weight, "data", linear.weight.data * 1.5),
    "a parameter": lambda linear: setattr(linear, "weight", nn.Parameter(grown(linear)["weight"], False)),
    "loaded": lambda linear: linear.load_state_dict(grown(linear)),
    "assigned": lambda linear: linear.load_state_dict(grown(linear), assign=True),
    "edited": edit,
}


@pytest.mark.parametrize(
    ("family", "what"), [*itertools.product(["longformer"], WEIGHT_CHANGES), ("modernbert", "edited")]
)
def test_weights(family: str, what: str, made: list[Any]) -> None:
    model = encoder(family)
    before = outcome(model)
    assert torch.equal(outcome(model), before) and len(made) == 1
    for part in (LINEAR, NORM):
        WEIGHT_CHANGES[what](layer_of(model).get_submodule(part[family]))
        after = outcome(model)
        assert not torch.allclose(after, before)
        assert torch.equal(after, without_a_plan(model))
        before = after


def replace_module(model: Any, layer: Any, name: str) -> None:
    parent, _, last = name.rpartition(".")
    old = layer.get_submodule(name)
    new = nn.Linear(old.in_features, old.out_features, old.bias is not None).requires_grad_(False)
    setattr(layer.get_submodule(parent), last, new)


def train_with_dropout(model: Any, layer: Any, name: str) -> None:
    set_dropout(layer, 0.4)
    if hasattr(layer, "attn"):
        layer.attn.out_drop = nn.Dropout(0.4)
    layer.train()


OTHER_CHANGES: dict[str, Callable[[Any, Any, str], Any]] = {
    "requires_grad": lambda model, layer, name: layer.get_submodule(name).requires_grad_(True),
    "type": lambda model, layer, name: model.double(),
    "a module": replace_module,
    "dropout and training": train_with_dropout,
    "forward hook": lambda model, layer, name: layer.get_submodule(name).register_forward_hook(lambda *_: None),
    "pre-hook": lambda model, layer, name: layer.get_submodule(name).register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda model, layer, name: layer.get_submodule(name).register_full_backward_hook(
        lambda *_: None
    ),
    "accelerate's hook": lambda model, layer, name: vars(layer.get_submodule(name)).update(_hf_hook=object()),
}


@pytest.mark.parametrize(
    ("family", "what"),
    [*itertools.product(["longformer"], OTHER_CHANGES), ("modernbert", "a module"), ("modernbert", "forward hook")],
)
def test_modules_hooks_and_modes(family: str, what: str, made: list[Any]) -> None:
    model = encoder(family)
    outcome(model)
    OTHER_CHANGES[what](model, layer_of(model), LINEAR[family])
    after = outcome(model)
    assert len(made) == 2
    assert torch.equal(after, without_a_plan(model))
    if "hook" in what or what == "requires_grad":
        assert made[1].enter is None


def test_hooks_of_all_modules(made: list[Any]) -> None:
    model, calls = encoder("longformer"), []
    outcome(model)
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: calls.append(module))
    outcome(model)
    handle.remove()
    assert layer_of(model).intermediate in calls
    outcome(model)
    assert [each.leave is None for each in made] == [False, True, False]


def set_scale(model: Any) -> None:
    layer = layer_of(model)
    (layer.attn.Wqkv if hasattr(layer, "attn") else layer.attention.self.query).scaling["default"] = 7.0


def merge_and_unmerge(model: Any) -> None:
    model.merge_adapter()
    outcome(model)
    model.unmerge_adapter()


ADAPTER_CHANGES: dict[str, Callable[[Any], Any]] = {
    "set_adapter": lambda model: model.set_adapter("other"),
    "two at once": lambda model: model.base_model.set_adapter(["default", "other"]),
    "disabled": lambda model: model.base_model.disable_adapter_layers(),
    "merged": lambda model: model.merge_adapter(),
    "merged and unmerged": merge_and_unmerge,
    "scale": set_scale,
    "deleted": lambda model: model.delete_adapter("default"),
}


@pytest.mark.parametrize(
    ("family", "what"),
    [*itertools.product(["longformer"], ADAPTER_CHANGES), ("modernbert", "set_adapter"), ("modernbert", "merged")],
)
def test_adapters(family: str, what: str, made: list[Any]) -> None:
    model = encoder(family, lora=True)
    before = outcome(model)
    ADAPTER_CHANGES[what](model)
    after = outcome(model)
    assert torch.allclose(after, before, atol=1e-5) == ("merged" in what)
    count = len(made)
    assert count > 1 and torch.equal(after, without_a_plan(model))


def test_trained_matrices_change_without_a_new_plan(made: list[Any]) -> None:
    model = encoder("longformer", lora=True)
    before = outcome(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.5)
    after = outcome(model)
    assert len(made) == 1 and not torch.allclose(after, before)
    assert torch.equal(after, without_a_plan(model))


def test_modes_keep_joined_weights_where_they_are(made: list[Any]) -> None:
    """A recorded pass goes on reading them."""
    model = encoder("longformer")
    outcome(model)
    outcome(model.train())
    edit(layer_of(model).attention.self.query)
    outcome(model)
    assert len(made) == 3
    assert len({each.enter.weights.projections.data_ptr() for each in made}) == 1


def test_what_inference_mode_made_can_be_trained_with() -> None:
    model = encoder("longformer", lora=True)
    with torch.inference_mode():
        outcome(model)
    inputs = batch(model, [7, 4])
    model(**inputs).last_hidden_state.square().sum().backward()


def test_weights_made_under_inference_mode(made: list[Any]) -> None:
    """PyTorch does not count their versions, so nothing made of them is kept."""
    with torch.inference_mode():
        model = encoder("longformer")
        before = outcome(model)
        layer_of(model).attention.self.query.weight.mul_(1.5)
        after = outcome(model)
        assert not torch.allclose(after, before) and torch.equal(after, without_a_plan(model))
    assert len(made) == 3


def test_nothing_made_while_a_graph_is_recorded_is_kept(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder("longformer")
    monkeypatch.setattr(block, "_can_be_kept", lambda _: False)
    outcome(model)
    outcome(model)
    assert len(made) == 2
    assert made[0].enter.weights.projections.data_ptr() != made[1].enter.weights.projections.data_ptr()


def test_copies_have_plans_of_their_own(made: list[Any]) -> None:
    model = encoder("longformer")
    before = outcome(model)
    other = copy.deepcopy(model)
    edit(layer_of(other).attention.self.query)
    assert not torch.allclose(outcome(other), before)
    assert torch.equal(outcome(model), before) and len(made) == 2


def test_uninstalling_lets_go_of_joined_weights() -> None:
    model = encoder("longformer")
    outcome(model)
    plans = getattr(model, ATTRIBUTE).plans
    assert len(plans) == 1
    attention.uninstall(model)
    assert not plans

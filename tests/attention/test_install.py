"""Installing the fast attention and uninstalling it."""

from __future__ import annotations

import copy
from typing import Any

import accelerate
import pytest
import torch

from prefixprop import attention
from prefixprop.backbones import FAMILIES

from one_layer import assert_close, assert_same_gradients, trained_gradients
from tiny import HEADS, SMALL, adapt, assert_same_bits, batch, both_methods, for_all_rows, tiny_model, with_triton

# Forwards that are replaced in Longformer: the model, its encoder, and in each of three layers itself, attention, and
# the outputs of attention and feed-forward; in ModernBERT: the model, and in each layer itself and attention.
REPLACED = {"longformer": 2 + 3 * 4, "modernbert": 1 + 3 * 2}
both_families = pytest.mark.parametrize("family", REPLACED)


def forwards(model: Any) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize("task", HEADS)
@both_families
def test_same_numbers_under_every_head(family: str, task: str) -> None:
    model = tiny_model(family, task)
    inputs = batch(model, [29, 17])
    # ModernBERT's attention has no weights to return: whoever asks for them gets Hugging Face's own attention.
    asked = {"output_hidden_states": True} | ({"output_attentions": True} if family == "longformer" else {})
    if task == "QUESTION_ANS" and family == "longformer":
        inputs = for_all_rows(inputs, 5)
    keys = list(model.state_dict())
    expected = model(**inputs, **asked)
    attention.install(model)
    assert list(model.state_dict()) == keys
    output = model(**inputs, **asked)
    assert output.keys() == expected.keys()
    real = inputs["attention_mask"].bool()

    def parts(of: Any) -> list[Any]:
        weights = [*(of.get("attentions") or ()), *(of.get("global_attentions") or ())]
        return [state[real] for state in of.hidden_states] + [own[:, :, :29] for own in weights]

    torch.testing.assert_close(parts(output), parts(expected), atol=1e-5, rtol=1e-5)
    kept = slice(None) if task == "SEQ_CLS" else real
    for found in (output, model(**inputs), model(**inputs, return_dict=False)):
        torch.testing.assert_close(found[0][kept], expected[0][kept], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["sdpa", pytest.param("triton", marks=with_triton)])
@both_families
def test_whole_models_have_the_numbers_of_hugging_face(family: str, backend: str) -> None:
    """In float16 too. (Triton's interpreter multiplies bfloat16 matrices wrongly, so that is checked on a GPU.)"""
    model = tiny_model(family, **SMALL)
    inputs = batch(model, [13, 6])
    expected, gradients = model(**inputs), trained_gradients(model, inputs)
    attention.install(model, backend)
    found = model(**inputs)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert not torch.equal(found.logits, expected.logits)  # it is another computation
    assert_same_gradients(trained_gradients(model, inputs), gradients)
    with torch.autocast("cpu", torch.float16):
        assert model(**inputs).logits.dtype == torch.float16
        assert_same_gradients(trained_gradients(model, inputs), gradients, 0.02)
    attention.uninstall(model)
    assert_same_bits(model(**inputs), expected)


@pytest.mark.parametrize(("backend", "frozen"), [("sdpa", False), pytest.param("triton", True, marks=with_triton)])
@both_families
def test_the_second_pass_of_a_checkpoint_draws_the_masks_of_the_first(
    family: str, backend: str, frozen: bool
) -> None:
    facts = FAMILIES[family]
    dropouts = (*facts.attention_dropout_fields, *(facts.hidden_dropout_fields if frozen else ()))
    model = tiny_model(family, **SMALL | dict.fromkeys(dropouts, 0.2)).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or "layer" not in name)
    attention.install(model, backend)
    inputs = batch(model, [13, 6])
    expected = trained_gradients(model, inputs)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same_gradients(trained_gradients(model, inputs), expected)
    still, (head, *_) = trained_gradients(model.eval(), inputs), [name for name in expected if "classifier" in name]
    assert not torch.allclose(still[head], expected[head], atol=1e-3)


@both_families
def test_uninstall_leaves_nothing_behind(family: str) -> None:
    model = tiny_model(family)
    inputs = batch(model, [29, 17])
    expected = model(**inputs)
    attention.install(model)
    assert len(forwards(model)) == REPLACED[family]
    attention.install(model)  # twice is once
    twin = copy.deepcopy(model)
    attention.uninstall(model)
    assert forwards(model) == [] and not hasattr(model.base_model, "attention_patch")
    assert_same_bits(model(**inputs), expected)
    assert len(forwards(twin)) == REPLACED[family]
    attention.uninstall(model)  # nothing to take out


@both_families
@both_methods
def test_together_with_a_prefix_in_any_order(method: str, family: str) -> None:
    inputs = batch(tiny_model(family), [29, 17])
    base = tiny_model(family)(**inputs)
    adapted = adapt(tiny_model(family), method)
    with_prefix = adapted(**inputs)
    first = tiny_model(family)
    attention.install(first)
    first = adapt(first, method)
    first.load_state_dict(adapted.state_dict())
    attention.install(adapted)
    for model in (adapted, first):
        assert_same_bits(model(**inputs), with_prefix)
        with model.disable_adapter():
            torch.testing.assert_close(model(**inputs).logits, base.logits, atol=1e-5, rtol=1e-5)
        attention.uninstall(model)
        assert_same_bits(model(**inputs), with_prefix)
        with model.disable_adapter():
            assert_same_bits(model(**inputs), base)
        attention.install(model)
        plain = model.unload()
        assert len(forwards(plain)) == REPLACED[family]  # still installed
        attention.uninstall(plain)
        assert forwards(plain) == []
        assert_same_bits(plain(**inputs), base)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
@both_families
def test_masks_of_any_type(family: str, dtype: torch.dtype) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    inputs = batch(model, [31, 20])
    real = inputs["attention_mask"].bool()
    expected = model(**inputs).last_hidden_state[real]
    attention.install(model)
    found = model(inputs["input_ids"], real.to(dtype)).last_hidden_state[real]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@both_methods
def test_a_pass_without_the_adapter_between_a_checkpointed_one_and_its_gradient(method: str) -> None:
    model = adapt(tiny_model(), method, prefix_dropout=0.0).train()
    inputs = batch(model, [31, 20]) | {"labels": torch.tensor([0, 1])}
    model(**inputs).loss.backward()
    expected = model.get_prefix().grad.clone()
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    loss = model(**inputs).loss
    with torch.no_grad(), model.disable_adapter():
        model(**inputs)
    loss.backward()
    torch.testing.assert_close(model.get_prefix().grad, expected, atol=1e-6, rtol=1e-5)


def test_hooks_of_any_kind_fire_as_with_hugging_face() -> None:
    def fired(model: Any) -> tuple[int, int]:
        calls: list[Any] = []
        linear = model.longformer.encoder.layer[1].attention.self.key_global
        hook = linear.register_full_backward_pre_hook(lambda *_: calls.append("gradient"))
        model(**batch(model, [31, 20])).logits.sum().backward()
        hook.remove()
        everywhere = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: calls.append(module))
        model(**batch(model, [31, 20]))
        everywhere.remove()
        return calls.count("gradient"), sum(isinstance(call, torch.nn.Linear) for call in calls)

    model = tiny_model()
    expected = fired(model)
    attention.install(model)
    assert fired(model) == expected and expected[0] == 1


def test_weights_that_accelerate_fetches_for_each_call() -> None:
    model = tiny_model()
    inputs = batch(model, [31, 20])
    expected = model(**inputs).logits
    attention.install(model)
    accelerate.cpu_offload(model, execution_device="cpu")
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


@with_triton
@pytest.mark.parametrize(("method", "frozen"), [(None, False), ("tuning", False), ("tuning", True)])
def test_without_global_tokens_their_projections_have_no_part(
    method: str | None, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Hugging Face's, these get no gradient then; and nothing comes from gradients that no kernel wrote."""
    make = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *given, **named: make(*given, **named).fill_(100))
    model = tiny_model(**SMALL).longformer
    tokens = torch.randint(5, 40, (2, 13))
    if method is not None:
        model = adapt(model, method, "FEATURE_EXTRACTION", prefix_dropout=0.0)
    if not frozen:
        model.requires_grad_(True)
    found = []
    for backend in ("sdpa", "triton"):
        attention.install(model, backend=backend)
        model.zero_grad()
        states = model(tokens)[0]
        (states * torch.arange(16.0)).sum().backward()
        found.append((states, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-5, rtol=1e-5)
    assert not any("_global" in name for name in found[1][1])
    assert_same_gradients(found[1][1], {name: of for name, of in found[0][1].items() if "_global" not in name})


@pytest.mark.parametrize(
    ("family", "method", "options"),
    [
        ("longformer", None, {}),
        ("longformer", "propagation", {"kernel": "poly", "alpha": 0.5, "alpha_mode": "query"}),
        ("longformer", "tuning", {}),
        ("modernbert", "propagation", {}),
        ("roberta", "propagation", {"layout": "reference"}),
    ],
)
def test_a_compiled_model_computes_the_same(family: str, method: str | None, options: dict[str, Any]) -> None:
    """With graph breaks or without."""
    torch.compiler.reset()
    model: Any = tiny_model(family, **({} if family == "longformer" else {"num_hidden_layers": 2}))
    if family in REPLACED:
        attention.install(model, backend="sdpa")
    if method is not None:
        model = adapt(model, method, prefix_dropout=0.0, **options)
    compiled = torch.compile(model, backend="aot_eager")

    def step(run: Any) -> dict[str, torch.Tensor]:
        model.zero_grad()
        logits = run(**inputs).logits
        logits.square().mean().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        assert gradients
        return {"logits": logits.detach()} | gradients

    for lengths in ([13, 6], [17, 5]):
        inputs = batch(model, lengths)
        assert_close(step(compiled), step(model))
    if method is not None:
        with model.disable_adapter():
            torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)

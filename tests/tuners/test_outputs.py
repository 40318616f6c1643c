"""What a model with a prefix returns."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from prefixprop.backbones import find_backbone
from prefixprop.tuners import propagation

from tiny import adapt, batch, both_methods, every_family, for_all_rows, tiny_model


@pytest.mark.parametrize("kernel", [None, "exp"])
@both_methods
@every_family
def test_outputs_carry_the_real_tokens_only(family: str, method: str, kernel: str | None) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    model.set_attn_implementation("eager")
    inputs = batch(model, [21, 13])
    if family == "longformer":
        inputs = for_all_rows(inputs, 2)
    plain = model(**inputs, output_hidden_states=True, output_attentions=True)
    adapted = adapt(model, method, "FEATURE_EXTRACTION", kernel=kernel)
    output = adapted(**inputs, output_hidden_states=True, output_attentions=True)
    for part in ("last_hidden_state", "hidden_states", "attentions"):
        assert [each.shape for each in output[part]] == [each.shape for each in plain[part]]
    assert torch.equal(output.hidden_states[0], plain.hidden_states[0])  # the embedded text itself
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    rows = output.attentions[0][1, :, 5:13].sum(dim=-1)
    if kernel is None:  # the prefix has a share of the softmax
        assert (rows < 0.999999).all() and (rows > 0).all()
    else:  # which is over the real tokens only
        torch.testing.assert_close(rows, torch.ones_like(rows))
    quiet, real = adapted(**inputs), inputs["attention_mask"].bool()
    torch.testing.assert_close(quiet[0][real], output.last_hidden_state[real], atol=1e-5, rtol=1e-5)
    assert adapted(**inputs, return_dict=False)[0].shape == plain.last_hidden_state.shape


def test_longformer_attentions_are_those_of_hugging_face() -> None:
    """Zero keys take a share of the softmax, and leave the proportions of the rest as they were."""
    model = tiny_model("longformer", "FEATURE_EXTRACTION")
    inputs = for_all_rows(batch(model, [21, 13]), 0)
    inputs["global_attention_mask"][0, :3] = inputs["global_attention_mask"][1, 7] = 1
    plain = model(**inputs, output_attentions=True)
    adapted = adapt(model, "tuning", "FEATURE_EXTRACTION", length=2)
    adapted.set_prefix(torch.zeros_like(adapted.get_prefix()))
    output = adapted(**inputs, output_attentions=True)
    real = inputs["attention_mask"].bool()
    ours, theirs = (found.attentions[0].transpose(1, 2)[real] for found in (output, plain))
    ours = ours / ours.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    ours, theirs = output.global_attentions[0], plain.global_attentions[0][:, :, :21]
    for example, count in ((0, 3), (1, 1)):
        mine, other = ours[example, :, :, :count], theirs[example, :, :, :count]
        torch.testing.assert_close(mine / mine.sum(dim=1, keepdim=True), other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "task"),
    [*product(("longformer", "roberta", "bert"), ("SEQ_CLS", "FEATURE_EXTRACTION")), ("modernbert", "SEQ_CLS")],
)
def test_pooling_reads_the_first_prefix_row(family: str, task: str) -> None:
    model = tiny_model(family, task)
    inputs = batch(model, [15, 8])
    from_token = adapt(tiny_model(family, task), "propagation", task, pooling="cls", prefix_dropout=0)
    from_prefix = adapt(model, "propagation", task, pooling="prefix", prefix_dropout=0)
    from_prefix.set_prefix(from_token.get_prefix().detach())
    rows: list[Any] = []
    find_backbone(from_prefix).layers[-1].register_forward_hook(lambda *call: rows.append(call[-1]))
    one = from_token(**inputs, output_hidden_states=True)
    two = from_prefix(**inputs, output_hidden_states=True)
    assert all(map(torch.equal, one.hidden_states, two.hidden_states))
    last = rows[0][0] if isinstance(rows[0], tuple) else rows[0]
    if task == "FEATURE_EXTRACTION":
        assert torch.equal(one.last_hidden_state, two.last_hidden_state)
        pooler = from_prefix.base_model.base_model.pooler
        torch.testing.assert_close(two.pooler_output, pooler(last))
    else:
        assert not torch.allclose(one.logits, two.logits)
        whole = from_prefix.base_model.model  # BERT pools in the encoder, the others in the head
        read = whole.base_model.pooler(last) if family == "bert" else last
        if family == "modernbert":
            read = whole.head(whole.base_model.final_norm.forward(last[:, 0]))
        torch.testing.assert_close(two.logits, whole.classifier(read))


@pytest.mark.parametrize(
    ("method", "options", "remedy"),
    [("propagation", {"pooling": "prefix"}, "use pooling='cls'"), ("reading", {"task": None}, "use a")],
)
@pytest.mark.parametrize(
    ("family", "task", "config", "message"),
    [
        ("longformer", "TOKEN_CLS", {}, "LongformerForTokenClassification does not"),
        ("modernbert", "SEQ_CLS", {"classifier_pooling": "mean"}, r"does not \(its classifier_pooling is mean\)"),
        ("modernbert", "FEATURE_EXTRACTION", {}, "ModernBertModel does not"),
    ],
)
def test_a_pooled_prefix_needs_a_model_that_pools_one_row(
    family: str, task: str, config: dict, message: str, method: str, options: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ValueError, match=f"needs a model that pools one row, and .*{message}; {remedy}"):
        adapt(tiny_model(family, task, **config), method, **{"task": task} | options)


@pytest.mark.parametrize(
    ("task", "targets", "shape"),
    [
        ("SEQ_CLS", {"labels": torch.tensor([0, 1])}, (2, 3)),
        ("TOKEN_CLS", {"labels": torch.arange(32).view(2, 16) % 3}, (2, 16, 3)),
        ("QUESTION_ANS", {"start_positions": torch.tensor([3, 1]), "end_positions": torch.tensor([4, 5])}, (2, 16)),
        ("FEATURE_EXTRACTION", {}, (2, 16, 32)),
    ],
)
@both_methods
@every_family
def test_every_task_runs_and_learns(
    family: str, method: str, task: str, targets: dict[str, Tensor], shape: tuple[int, ...]
) -> None:
    model = adapt(tiny_model(family, task), method, task)
    inputs = batch(model, [16, 16])
    if task == "QUESTION_ANS" and family == "longformer":  # Hugging Face finds the question by three separators
        inputs["input_ids"][:, [5, 6, 15]] = model.config.sep_token_id
    output = model(**inputs, **targets)
    rows = output[1 if targets else 0]
    assert rows.shape == shape
    (output.loss if targets else rows.square().sum()).backward()
    assert model.get_prefix().grad.abs().sum() > 0


@both_methods
@every_family
def test_what_a_hook_on_a_layer_holds_stays_what_it_is(
    family: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are copied there, and nowhere else."""
    copies: list[Any] = []
    whole = propagation._add
    monkeypatch.setattr(propagation, "_add", lambda *given: copies.append(given) or whole(*given))
    model = adapt(tiny_model(family), method)
    inputs, held = batch(model, [16, 9]), list[Any]()
    model(**inputs)
    assert not copies

    def hold(_: Any, __: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        held.extend([states, states.detach().clone(), (states**2).mean()])

    find_backbone(model).layers[0].register_forward_hook(hold)
    (model(**inputs).logits.sum() + held[2]).backward()
    assert len(copies) == (method == "propagation")
    assert torch.equal(held[0], held[1]) and model.get_prefix().grad.abs().sum() > 0

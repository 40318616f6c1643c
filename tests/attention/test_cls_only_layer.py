"""The last layer for the one row that a classification head reads: same numbers, and all rows for other readers."""

from __future__ import annotations

import copy
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LongformerForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from prefixprop import attention
from prefixprop.attention import longformer as forwards

from one_layer import assert_same_gradients, outcome
from tiny import SMALL, adapt, batch, for_all_rows, tiny_model, with_triton

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fine-tuning": ("none", {}),
    "lora": ("lora", {"target_modules": ["query", "value", "value_global"], "init_lora_weights": False}),
    "propagation": ("propagation", {}),
    "layout reference": ("propagation", {"layout": "reference"}),
    "pooling prefix": ("propagation", {"pooling": "prefix"}),
    "kernel": ("propagation", {"kernel": "exp", "alpha": 0.7}),
    "kernel, alpha by query": ("propagation", {"kernel": "rbf", "alpha_mode": "query"}),
    "tuning": ("tuning", {}),
    "tuning, kernel": ("tuning", {"kernel": "linear", "alpha": 0.7}),
}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that were asked for of the last layer, one for each pass that did."""
    rows: list[int] = []
    whole = forwards.cls_only_layer
    monkeypatch.setattr(forwards, "cls_only_layer", lambda *given: rows.append(given[2].cls_row) or whole(*given))
    return rows


def model_of(name: str, **config: Any) -> Any:
    method, options = METHODS[name]
    model = tiny_model(**config)
    if method == "none":
        return model
    if method == "lora":
        return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", **options)).eval()
    return adapt(model, method, prefix_dropout=0.0, **options)


@pytest.mark.parametrize(
    ("name", "config", "how"),
    [
        *((name, {}, "") for name in METHODS),
        # Hugging Face's head reads the first row even if it is padding, which attends to nothing.
        *((name, {}, "left") for name in ("fine-tuning", "propagation", "tuning")),
        ("propagation", {}, "checkpointed"),
        pytest.param("propagation", SMALL, "", marks=with_triton),
    ],
)
def test_same_logits_and_gradients(name: str, config: dict[str, Any], how: str, read: list[int]) -> None:
    """On plain PyTorch, and behind a small layer on Triton."""
    model = model_of(name, **config)
    attention.install(model, "triton" if config else "sdpa")
    inputs = batch(model, [6, 4] if config else [29, 17], left=how == "left")
    expected = outcome(model, for_all_rows(inputs))
    assert read == []
    if how == "checkpointed":
        model.train().gradient_checkpointing_enable()
    found = outcome(model, inputs)
    assert_same_gradients(found, expected)
    if name == "fine-tuning":  # DistributedDataParallel waits for the gradient of each parameter, used or not
        assert found.keys() - {"logits"} == {name for name, _ in model.named_parameters()}
    row = 4 if METHODS[name][0] == "propagation" and name != "pooling prefix" else 0
    assert read == [row] * (2 if how == "checkpointed" else 1)  # forward, and again for backward


def test_dropout_of_the_attention(read: list[int]) -> None:
    model = model_of("propagation").train()
    model.base_model.model.longformer.encoder.layer[-1].attention.self.dropout = 0.5
    inputs = batch(model, [29, 17])
    with torch.no_grad():
        draws = torch.stack([model(**inputs).logits for _ in range(3)])
        assert draws.var(dim=0).min() > 0
        model.eval()
        assert torch.equal(model(**inputs).logits, model(**inputs).logits)
    assert len(read) == 5


def test_half_precision_is_as_exact_as_with_all_rows() -> None:
    model = model_of("propagation")
    inputs = batch(model, [60, 33])
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(**inputs).logits
        with torch.autocast("cpu", torch.bfloat16):
            error, error_of_all = (
                (model(**given).logits.double() - exact).abs().mean() for given in (inputs, for_all_rows(inputs))
            )
    assert 0 < error < 1.5 * error_of_all


@pytest.mark.parametrize("name", ["fine-tuning", "propagation"])
def test_all_rows_for_whoever_reads_them(name: str, read: list[int]) -> None:
    model = model_of(name)
    attention.install(model)
    inputs = batch(model, [29, 17])
    bare = model.base_model.model if name == "propagation" else model
    encoder = bare.longformer.encoder
    states = model(**inputs, output_hidden_states=True).hidden_states[-1]
    assert states[0].abs().sum(dim=-1).min() > 0
    model(**inputs, output_attentions=True)
    seen: list[Any] = []
    layer = encoder.layer[-1]
    head = bare.classifier.modules_to_save["default"] if name == "propagation" else bare.classifier
    watched = [bare.longformer, encoder, layer, layer.intermediate, layer.attention.self.query_global, head]
    for module in watched:
        handle = module.register_forward_hook(lambda *given: seen.append(given))
        model(**inputs)
        handle.remove()
        handle = module.register_full_backward_hook(lambda *_: None)
        model(**inputs)
        handle.remove()
    assert len(seen) == len(watched) and read == []
    model(**inputs)
    assert len(read) == 1
    # The encoder by itself, after a head that read one row of it.
    alone = bare.longformer(**for_all_rows(inputs)).last_hidden_state
    torch.testing.assert_close(alone, states)
    assert len(read) == 1


class Mean(nn.Module):
    def forward(self, states: Tensor) -> Tensor:
        return states.mean(dim=1)[:, :3]


class MeanPooled(LongformerForSequenceClassification):
    """Reads all rows, and makes no token global."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        states = self.longformer(input_ids, attention_mask=attention_mask)[0]
        return SequenceClassifierOutput(logits=self.classifier(states.mean(dim=1, keepdim=True)))


@pytest.mark.parametrize("own", ["head", "forward"])
def test_heads_and_classes_of_ones_own_read_all_rows(own: str, read: list[int]) -> None:
    model = tiny_model() if own == "head" else MeanPooled(tiny_model().config).eval()
    if own == "head":
        model.classifier = Mean()
    inputs = batch(model, [29, 29])
    expected = model(**inputs).logits
    attention.install(model)
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    assert read == []


def test_after_a_head_that_failed_all_rows_are_computed(read: list[int]) -> None:
    """Of a head whose forward is wrapped, as accelerate does for mixed precision."""
    model = tiny_model("longformer")
    attention.install(model)
    forward = model.forward
    model.forward = functools.wraps(forward)(lambda *args, **kwargs: forward(*args, **kwargs))
    inputs = batch(model, [31, 20])
    model(**inputs)
    assert read == [0]
    with pytest.raises(ValueError, match="batch_size"):
        model(**inputs, labels=torch.zeros(3, dtype=torch.long))
    with pytest.raises(RuntimeError):
        model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"][:, :5])
    count = len(read)
    states = model.longformer(**for_all_rows(inputs)).last_hidden_state
    assert states[0].abs().sum(dim=-1).min() > 0 and len(read) == count


def test_in_several_threads() -> None:
    """Each pass has a pattern of its own."""
    model = tiny_model("longformer")
    attention.install(model, "sdpa")
    inputs = [batch(model, [29, length]) for length in range(3, 27)]

    def logits(given: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return model(**given).logits + model.longformer(**for_all_rows(given)).last_hidden_state.sum()

    expected = [logits(given) for given in inputs]
    with ThreadPoolExecutor(4) as threads:
        for found, one in zip(threads.map(logits, inputs * 2), expected * 2, strict=True):
            assert torch.equal(found, one)

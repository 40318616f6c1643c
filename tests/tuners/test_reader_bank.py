"""A bank of readers against the ordinary adapters that its readers are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from prefixprop import attention
from prefixprop.backbones import FAMILIES, find_backbone
from prefixprop.tuners.reader_bank import (
    ReaderBank,
    ReaderWeights,
    embedded_cls,
    new_reader,
    read_adapter,
    save_adapters,
)
from prefixprop.tuners.reading import text_to_read

from tiny import adapt, assert_same_bits, batch, every_family, randomised, tiny_model

LENGTHS = [23, 11, 1]
every_model = pytest.mark.parametrize("family", FAMILIES)


def exact_model(family: str, **overrides: Any) -> Any:
    return tiny_model(family, **overrides).double()


def random_reader(backbone: Any, seed: int, length: int = 2, classes: int = 3) -> ReaderWeights:
    """One in float64, with weights so large that mistakes show."""
    reader = new_reader(backbone, length, classes, seed)
    torch.manual_seed(seed)
    return ReaderWeights(
        (reader.prefix + 0.5 * torch.randn_like(reader.prefix)).double(),
        {name: (value + 0.3 * torch.randn_like(value)).double() for name, value in reader.head.items()},
    )


def bank_of(model: Any, seeds: range = range(4), **options: Any) -> ReaderBank:
    backbone = find_backbone(model)
    return ReaderBank(backbone, [random_reader(backbone, seed, **options) for seed in seeds])


def adapter_of(plain: Any, reader: ReaderWeights) -> Any:
    """A new model with the encoder of `plain`, and a reader as its adapter."""
    model = exact_model(plain.config.model_type, num_labels=reader.classes)
    model.base_model.load_state_dict(plain.base_model.state_dict())
    own = [name for name in find_backbone(model).head_modules if name != "classifier"] or None
    adapted = adapt(model, "reading", length=reader.prefix.shape[1], prefix_dropout=0.0, modules_to_save=own)
    adapted.set_prefix(reader.prefix)
    for name, value in reader.head.items():
        trained_parameter(adapted, name).data.copy_(value)
    return adapted


def trained_parameter(adapted: Any, name: str) -> Any:
    part, _, rest = name.partition(".")
    return getattr(adapted.get_base_model(), part).modules_to_save.default.get_parameter(rest)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """A bank's logits are in float32."""
    scale = float(expected.detach().abs().max() + 1)
    torch.testing.assert_close(found, expected, atol=1e-6 * scale, rtol=0, check_dtype=False)


@pytest.mark.parametrize("length", [1, 3], ids=["folded", "projected"])
@every_model
def test_a_reader_is_its_adapter(family: str, length: int) -> None:
    """Alone and in a bank; with 3 virtual tokens, 4 readers are too many rows to fold keys into queries."""
    model = exact_model(family)
    bank, inputs = bank_of(model, length=length), batch(model, LENGTHS)
    text = text_to_read(bank.backbone, inputs)
    logits = bank(text)
    assert logits.shape == (4, len(LENGTHS), 3) and logits.dtype == torch.float32
    direction = torch.randn_like(logits)
    (logits * direction).sum().backward()
    for index in range(len(bank)):
        assert_close(bank.select([index])(text)[0], logits[index])
        adapted = adapter_of(model, bank.weights(index))
        expected = adapted(**inputs).logits
        assert_close(logits[index], expected)
        (expected * direction[index]).sum().backward()
        assert_close(bank.prefix.grad[index], adapted.get_prefix().grad)
        for name, parameter in zip(bank.names, bank.heads, strict=True):
            assert_close(parameter.grad[index], trained_parameter(adapted, name).grad)
    assert len(list(bank.parameters())) == 1 + len(bank.names)  # nothing of the model


@every_family
def test_heads_of_different_sizes(family: str) -> None:
    model = exact_model(family)
    backbone, inputs = find_backbone(model), batch(model, LENGTHS)
    sizes = (2, 5, 3)
    bank = ReaderBank(backbone, [random_reader(backbone, seed, classes=n) for seed, n in enumerate(sizes)])
    text = text_to_read(backbone, inputs)
    logits = bank(text)
    assert bank.classes == sizes and logits.shape[2] == 5
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.ones(9, dtype=torch.long)).backward()
    for index, classes in enumerate(sizes):
        assert (logits[index, :, classes:] == -torch.inf).all()
        expected = adapter_of(model, bank.weights(index))(**inputs).logits
        assert_close(logits[index, :, :classes], expected)
        for name, parameter in zip(bank.names, bank.heads, strict=True):
            assert parameter.grad[index].isfinite().all()
            if parameter.shape[1] == 5 and name in ("classifier.weight", "classifier.out_proj.weight"):
                assert not parameter.grad[index, classes:].any() and parameter.grad[index, :classes].any()
    for chosen in (slice(1, 3), torch.tensor([2, 0])):
        assert_close(bank(text, chosen), logits[chosen])
    narrow = bank.select([2, 0])
    assert narrow.classes == (3, 2) and len(narrow) == 2
    assert_close(narrow(text), logits[[2, 0], :, :3])
    with torch.no_grad():
        narrow.prefix.zero_()
    assert bank(text).equal(logits)


@every_family
def test_dropout(family: str) -> None:
    """The prefix's is drawn for every reader and only in training; the layers' own is used if they train."""
    backbone = FAMILIES[family]
    of_model = dict.fromkeys((*backbone.hidden_dropout_fields, *backbone.attention_dropout_fields), 0.3)
    readers = [random_reader(find_backbone(exact_model(family)), 0)] * 6
    for options, prefix_dropout in (({}, 0.3), (of_model, 0.0)):
        model = exact_model(family, **options)
        bank = ReaderBank(find_backbone(model), readers, prefix_dropout).train()
        text = text_to_read(bank.backbone, batch(model, LENGTHS))
        model.train(bool(options))
        logits = bank(text)
        assert all(not logits[0].allclose(other) for other in logits[1:])
        bank.eval()
        model.eval()
        assert bank(text)[0].allclose(bank(text)[1], atol=1e-5)


# --- the text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "fast"),
    [(family, fast) for family in FAMILIES for fast in {False, FAMILIES[family].has_fast_attention}],
)
def test_the_text_is_that_of_the_frozen_model(family: str, fast: bool) -> None:
    facts = FAMILIES[family]
    model = exact_model(family, **dict.fromkeys((*facts.hidden_dropout_fields, *facts.attention_dropout_fields), 0.3))
    if fast:
        attention.install(model, "sdpa")
    backbone = find_backbone(model)
    calls: list[int] = []
    for index, layer in enumerate(backbone.layers):
        layer.register_forward_hook(lambda *_, index=index: calls.append(index))
    for lengths in (LENGTHS, [9, 9]):
        inputs = batch(model, lengths)
        if lengths == [9, 9]:
            del inputs["attention_mask"]
        expected = model.eval()(**inputs, output_hidden_states=True)
        plain = model(**inputs)
        calls.clear()
        model.train()
        model.classifier.eval()
        modes = [module.training for module in model.modules()]
        hooks = [len(layer._forward_pre_hooks) for layer in backbone.layers]
        text = text_to_read(backbone, inputs)
        assert calls == [0, 1]  # of three layers
        assert [module.training for module in model.modules()] == modes
        assert [len(layer._forward_pre_hooks) for layer in backbone.layers] == hooks
        assert (text.pattern.unpadded_rows is None) == ("attention_mask" in inputs)
        real = ~text.pattern.is_masked
        assert real.sum(dim=1).tolist() == lengths and len(text.states) == 3
        for found, wanted in zip(text.states, expected.hidden_states, strict=False):
            assert not found.requires_grad and found.shape == (*inputs["input_ids"].shape, 32)
            assert_close(found[real], wanted[:, : found.shape[1]][real])
        assert_same_bits(model.eval()(**inputs), plain)  # what was left in the middle is forgotten


def test_hooks_are_removed_where_the_model_fails() -> None:
    backbone = find_backbone(tiny_model("roberta").train())
    with pytest.raises(IndexError):
        text_to_read(backbone, {"input_ids": torch.full((1, 3), 1000)})
    assert not any(layer._forward_pre_hooks for layer in backbone.layers)
    assert all(module.training for module in backbone.module.modules())


@every_model
def test_saved_as_adapters(family: str, tmp_path: Path) -> None:
    model = exact_model(family)
    bank, inputs = bank_of(model, range(2)), batch(model, LENGTHS)
    logits = bank(text_to_read(bank.backbone, inputs))
    readers = {tmp_path / "one": bank.weights(0), tmp_path / "two": bank.weights(1)}
    save_adapters(adapter_of(model, random_reader(bank.backbone, 9)), readers)
    for expected, (folder, reader) in zip(logits, readers.items(), strict=True):
        loaded = PeftModel.from_pretrained(exact_model(family), folder).eval()
        assert_close(loaded(**inputs).logits, expected)
        kept = read_adapter(folder)
        assert kept.prefix.equal(reader.prefix) and kept.head.keys() == reader.head.keys()
        assert all(kept.head[name].equal(value) for name, value in reader.head.items())


@pytest.mark.parametrize(("gate", "network"), [(True, False), (False, True), (True, True)])
@every_family
def test_any_adapter_that_reads_can_be_read(family: str, gate: bool, network: bool, tmp_path: Path) -> None:
    model = exact_model(family)
    own = ["head"] if family == "modernbert" else None
    adapted = adapt(model, "reading", length=3, modules_to_save=own, gate=gate, reparameterize=network)
    adapted = randomised(adapted).double().eval()
    inputs = batch(model, LENGTHS)
    adapted.save_pretrained(tmp_path)
    backbone = find_backbone(exact_model(family))
    found = ReaderBank(backbone, [read_adapter(tmp_path)])(text_to_read(backbone, inputs))
    assert_close(found[0], adapted(**inputs).logits)


@every_model
def test_a_start_is_drawn_by_its_seed(family: str) -> None:
    model = exact_model(family)
    backbone = find_backbone(model)
    one, same, other = (new_reader(backbone, 2, 5, seed) for seed in (3, 3, 4))
    torch.manual_seed(1)
    assert one.prefix.equal(same.prefix) and not one.prefix.equal(other.prefix)
    assert one.prefix.shape == (3, 2, 32) and one.classes == 5
    for name, value in one.head.items():
        assert value.equal(same.head[name])
        assert value.equal(other.head[name]) == (value.dim() == 1)
        assert bool(value.any()) == (value.dim() > 1 or "norm" in name)
        wanted = model.get_parameter(name).shape
        assert value.shape in (wanted, (5, *wanted[1:]))
    assert one.head.keys() == {
        name for name, _ in model.named_parameters() if name.split(".")[0] in backbone.head_modules
    }


@every_model
def test_starts_as_cls(family: str) -> None:
    """A virtual token that is [CLS] sees the text and itself; where the text is [CLS] alone, as [CLS] does."""
    model = exact_model(family, hidden_dropout_prob=0.3, embedding_dropout=0.3).train()
    backbone = find_backbone(model)
    cls = embedded_cls(backbone, 5)
    assert all(module.training for module in model.modules())
    inputs = {"input_ids": torch.tensor([[5]])}
    text = text_to_read(backbone, inputs)
    assert_close(text.states[0][0, 0], cls)
    drawn, plain = (new_reader(backbone, 2, 3, 0, start) for start in (cls, None))
    assert_close(drawn.prefix[0, 0] - plain.prefix[0, 0], cls)
    assert drawn.prefix[0, 1:].equal(plain.prefix[0, 1:]) and drawn.prefix[1:].equal(plain.prefix[1:])
    found = second_cls(model.eval(), cls)(text)
    assert_close(found[0], model(**inputs).logits)


def second_cls(model: Any, cls: Tensor) -> ReaderBank:
    """A reader that is [CLS], with the model's own head."""
    backbone = find_backbone(model)
    prefix = torch.zeros(len(backbone.layers), 1, 32)
    prefix[0, 0] = cls
    head = {name: model.get_parameter(name).detach() for name in new_reader(backbone, 1, 3, 0).head}
    return ReaderBank(backbone, [ReaderWeights(prefix, head)])

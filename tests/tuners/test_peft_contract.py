"""What users of peft expect of any method."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig

from tiny import FAMILIES, HEADS, batch, tiny_model

METHODS: dict[str, Any] = {"propagation": PrefixPropagationConfig, "tuning": PrefixTuningConfig}
both_methods = pytest.mark.parametrize("method", METHODS)
every_family = pytest.mark.parametrize("family", FAMILIES)


def adapt(model: Any, method: str, task: str = "SEQ_CLS", length: int = 4, **options: Any) -> Any:
    return get_peft_model(model, METHODS[method](task_type=task, num_virtual_tokens=length, **options)).eval()


def tensors(output: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


def assert_same_bits(output: Any, other: Any) -> None:
    one, two = tensors(output), tensors(other)
    assert one.keys() == two.keys() and one
    assert all(torch.equal(one[name], two[name]) for name in one)


# --- saving and loading -----------------------------------------------------------------------------------------------

RELOAD = """
import sys, torch
import peft, prefixprop
folder, task = sys.argv[1:3]
auto = {"SEQ_CLS": peft.AutoPeftModelForSequenceClassification, "TOKEN_CLS": peft.AutoPeftModelForTokenClassification,
        "QUESTION_ANS": peft.AutoPeftModelForQuestionAnswering,
        "FEATURE_EXTRACTION": peft.AutoPeftModelForFeatureExtraction}[task]
torch.set_num_threads(1)
model = auto.from_pretrained(folder + "/adapter", **({"num_labels": 3} if task in ("SEQ_CLS", "TOKEN_CLS") else {}))
inputs = torch.load(folder + "/inputs.pt", weights_only=True)
output = model(**inputs)
torch.save({k: v for k, v in output.items() if isinstance(v, torch.Tensor)}, folder + "/outputs.pt")
"""


@pytest.mark.parametrize("task", HEADS)
@both_methods
def test_a_fresh_process_loads_the_same_bits(method: str, task: str, tmp_path: Path) -> None:
    family = {"SEQ_CLS": "longformer", "TOKEN_CLS": "roberta", "QUESTION_ANS": "bert"}.get(task, "longformer")
    tiny_model(family, task).save_pretrained(tmp_path / "base")
    base = HEADS[task].from_pretrained(tmp_path / "base")
    model = adapt(base, method, task)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    inputs = batch(base, [20, 11])
    torch.save(inputs, tmp_path / "inputs.pt")
    model.save_pretrained(tmp_path / "adapter")
    subprocess.run([sys.executable, "-c", RELOAD, str(tmp_path), task], check=True, timeout=300)
    expected = tensors(model(**inputs))
    found = torch.load(tmp_path / "outputs.pt", weights_only=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@both_methods
@every_family
def test_the_file_holds_the_prefix_and_the_head(family: str, method: str, tmp_path: Path) -> None:
    model = adapt(tiny_model(family), method)
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    saved = load_file(tmp_path / "adapter_model.safetensors")
    (prefix,) = [name for name in saved if "prefixes" in name]
    assert torch.equal(saved[prefix], model.get_prefix())
    assert all("classifier" in name for name in saved if name != prefix)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == ("PREFIX_PROPAGATION" if method == "propagation" else "LONG_PREFIX_TUNING")
    assert (config["model_type"], config["num_layers"], config["token_dim"]) == (family, 3, 32)

    again = PeftModel.from_pretrained(tiny_model(family), tmp_path)
    inputs = batch(model, [13])
    assert_same_bits(again(**inputs), model(**inputs))
    assert not any(parameter.requires_grad for parameter in again.parameters())
    trainable = PeftModel.from_pretrained(tiny_model(family), tmp_path, is_trainable=True)
    assert trainable.get_prefix().requires_grad


def test_meta_device_loading(tmp_path: Path) -> None:
    model = adapt(tiny_model(), "propagation")
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny_model(), tmp_path, low_cpu_mem_usage=True)
    inputs = batch(model, [13])
    assert_same_bits(again(**inputs), model(**inputs))


# --- several adapters -------------------------------------------------------------------------------------------------


@both_methods
@every_family
def test_two_adapters_of_different_lengths(family: str, method: str, tmp_path: Path) -> None:
    inputs = batch(tiny_model(family), [19, 7])
    model = adapt(tiny_model(family), method, length=4)
    alone = adapt(tiny_model(family), method, length=9, layout="reference")
    first = model(**inputs)
    alone.save_pretrained(tmp_path)

    model.load_adapter(tmp_path, "second")
    assert_same_bits(model(**inputs), first)  # loading does not activate
    model.set_adapter("second")
    assert_same_bits(model(**inputs), alone(**inputs))
    assert model.get_prefix("default").shape[-2] == 4 and model.get_prefix("second").shape[-2] == 9
    model.set_adapter("default")
    assert_same_bits(model(**inputs), first)

    model.delete_adapter("second")
    assert list(model.peft_config) == ["default"]
    with pytest.raises(ValueError, match="no adapter 'second'; there are: default"):
        model.get_prefix("second")
    assert_same_bits(model(**inputs), first)


def test_deleting_the_active_adapter_activates_the_other() -> None:
    model = adapt(tiny_model(), "propagation")
    model.add_adapter("second", PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=2))
    model.set_adapter("second")
    inputs = batch(model, [9])
    model.set_adapter("default")
    expected = model(**inputs)
    model.set_adapter("second")
    with pytest.warns(UserWarning, match="default"):
        model.delete_adapter("second")
    assert_same_bits(model(**inputs), expected)


def test_only_one_adapter_is_active() -> None:
    model = adapt(tiny_model(), "propagation")
    model.add_adapter("second", PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=2))
    with pytest.raises(ValueError, match="Only one prefix adapter"):
        model.base_model.set_adapter(["default", "second"])


# --- taking the adapter off -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
@both_methods
@every_family
def test_disabled_is_the_base_model_to_the_bit(family: str, method: str, frozen: bool) -> None:
    model = tiny_model(family).requires_grad_(not frozen)
    inputs = batch(model, [25, 14])
    expected = model(**inputs, output_hidden_states=True)
    adapted = adapt(model, method)
    assert not torch.allclose(adapted(**inputs).logits, expected.logits)
    with adapted.disable_adapter():
        output = adapted(**inputs, output_hidden_states=True)
        assert_same_bits(output, expected)
        assert all(map(torch.equal, output.hidden_states, expected.hidden_states))


def pristine(module: Any) -> tuple:
    hooks = {
        name: (list(child._forward_hooks), list(child._forward_pre_hooks), "forward" in vars(child))
        for name, child in module.named_modules()
    }
    state = {name: (tuple(value.shape), value.dtype) for name, value in module.state_dict().items()}
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    return hooks, state, trainable


@both_methods
@every_family
def test_unload_gives_the_untouched_model_back(family: str, method: str) -> None:
    model = tiny_model(family)
    inputs = batch(model, [25, 14])
    before, expected = pristine(model), model(**inputs)
    adapted = adapt(model, method)
    adapted(**inputs)
    base = adapted.unload()
    assert base is model
    assert pristine(base) == before
    assert_same_bits(base(**inputs), expected)
    assert not hasattr(base, "peft_config")
    # and it can be adapted anew, with the other method too
    other = adapt(base, "tuning" if method == "propagation" else "propagation")
    assert not torch.allclose(other(**inputs).logits, expected.logits)


@both_methods
def test_merging_is_refused_with_the_reason(method: str) -> None:
    adapted = adapt(tiny_model(), method)
    for merge in (adapted.merge_and_unload, adapted.merge_adapter):
        with pytest.raises(ValueError, match=r"cannot be merged: it acts as extra rows or keys.*unload\(\)"):
            merge()
    adapted(**batch(adapted, [9]))  # still whole


@both_methods
@every_family
def test_a_deep_copy_is_independent(family: str, method: str) -> None:
    model = adapt(tiny_model(family), method)
    inputs = batch(model, [12])
    expected = model(**inputs)
    twin = copy.deepcopy(model)
    twin.set_prefix(torch.zeros_like(twin.get_prefix()))
    assert_same_bits(model(**inputs), expected)
    assert not torch.equal(twin(**inputs).logits, expected.logits)


# --- what is trained --------------------------------------------------------------------------------------------------


@both_methods
@every_family
def test_only_prefix_and_head_are_trained(family: str, method: str) -> None:
    model = adapt(tiny_model(family), method)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert sum("prefixes" in name for name in trained) == 1
    assert all("prefixes" in name or "classifier.modules_to_save.default" in name for name in trained)
    inputs = batch(model, [10, 6])
    model(**inputs, labels=torch.tensor([0, 2])).loss.backward()
    with_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert with_gradient == trained
    assert model.get_prefix().grad.abs().sum() > 0


def test_lora_can_be_added_below() -> None:
    """The encoder's layers stay where they are, so another peft method finds its targets."""
    model = tiny_model("roberta")
    adapted = adapt(model, "propagation")
    inputs = batch(model, [14])
    expected = adapted(**inputs).logits
    lora = get_peft_model(adapted.get_base_model(), LoraConfig(target_modules=["query", "value"], r=2)).eval()
    names = [name for name, _ in lora.named_parameters() if "lora_A" in name]
    assert len(names) == 2 * model.config.num_hidden_layers
    torch.testing.assert_close(lora(**inputs).logits, expected)  # LoRA starts as the identity


# --- reading and setting the prefix -----------------------------------------------------------------------------------


def test_prefix_shapes() -> None:
    assert adapt(tiny_model(), "propagation", length=5).get_prefix().shape == (3, 5, 32)
    assert adapt(tiny_model(), "tuning", length=5).get_prefix("default").shape == (3, 2, 4, 5, 8)


@both_methods
def test_set_prefix_checks_what_it_gets(method: str) -> None:
    model = adapt(tiny_model(), method)
    good = torch.randn(model.get_prefix().shape)
    model.set_prefix(good, "default")
    assert torch.equal(model.get_prefix(), good)
    for bad in (good[:2], good.long(), good[None], [1.0]):
        with pytest.raises(ValueError, match=r"float tensor of shape \[3, .*pass one of that shape"):
            model.set_prefix(bad)
    assert torch.equal(model.get_prefix(), good)
    with pytest.raises(ValueError, match="no adapter 'other'"):
        model.set_prefix(good, "other")


# --- outputs ----------------------------------------------------------------------------------------------------------


@both_methods
@every_family
def test_outputs_carry_the_real_tokens_only(family: str, method: str) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    model.set_attn_implementation("eager")
    inputs = batch(model, [21, 13])
    if family == "longformer":
        inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
        inputs["global_attention_mask"][:, :2] = 1
    plain = model(**inputs, output_hidden_states=True, output_attentions=True)
    adapted = adapt(model, method, "FEATURE_EXTRACTION")
    output = adapted(**inputs, output_hidden_states=True, output_attentions=True)
    assert output.last_hidden_state.shape == plain.last_hidden_state.shape
    assert [state.shape for state in output.hidden_states] == [state.shape for state in plain.hidden_states]
    assert torch.equal(output.hidden_states[0], plain.hidden_states[0])  # the embedded text itself
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    assert [weights.shape for weights in output.attentions] == [weights.shape for weights in plain.attentions]
    # A row's weights and what the prefix got of it sum to one, so without the prefix they stay below.
    rows = output.attentions[0][1, :, 5:13].sum(dim=-1)
    assert (rows < 0.9999).all() and (rows > 0).all()
    quiet = adapted(**inputs)
    torch.testing.assert_close(quiet.last_hidden_state, output.last_hidden_state, atol=1e-5, rtol=1e-5)
    assert adapted(**inputs, return_dict=False)[0].shape == plain.last_hidden_state.shape


@pytest.mark.parametrize("family", FAMILIES)
def test_longformer_attentions_are_those_of_hugging_face(family: str) -> None:
    """A prefix that no row can see leaves exactly Hugging Face's weights."""
    model = tiny_model("longformer", "FEATURE_EXTRACTION")
    inputs = batch(model, [21, 13], seed=FAMILIES.index(family))
    inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
    inputs["global_attention_mask"][0, :3] = 1
    inputs["global_attention_mask"][1, 7] = 1
    plain = model(**inputs, output_attentions=True)
    adapted = adapt(model, "tuning", "FEATURE_EXTRACTION", length=2)
    prefix = torch.zeros_like(adapted.get_prefix())
    prefix[:, 0] = 0.0
    adapted.set_prefix(prefix)
    output = adapted(**inputs, output_attentions=True)
    # Zero keys score zero: they take a share, and leave the proportions of the rest as they were.
    real = inputs["attention_mask"].bool()
    for ours, theirs in zip(output.attentions[:1], plain.attentions[:1], strict=True):
        ours, theirs = ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real]
        ours = ours / ours.sum(dim=-1, keepdim=True).clamp(min=1e-9)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    ours, theirs = output.global_attentions[0], plain.global_attentions[0][:, :, :21]
    for example, count in ((0, 3), (1, 1)):
        mine, other = ours[example, :, :, :count], theirs[example, :, :, :count]
        torch.testing.assert_close(mine / mine.sum(dim=1, keepdim=True), other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("task", ["SEQ_CLS", "FEATURE_EXTRACTION"])
@every_family
def test_pooling_reads_the_first_prefix_row(family: str, task: str) -> None:
    model = tiny_model(family, task)
    inputs = batch(model, [15, 8])
    from_token = adapt(tiny_model(family, task), "propagation", task, pooling="cls", prefix_dropout=0)
    from_prefix = adapt(model, "propagation", task, pooling="prefix", prefix_dropout=0)
    from_prefix.set_prefix(from_token.get_prefix().detach())
    rows: list[Any] = []
    encoder = from_prefix.base_model.base_model.encoder
    encoder.layer[-1].register_forward_hook(lambda *call: rows.append(call[-1]))
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


def test_pooling_prefix_needs_a_pooling_model() -> None:
    with pytest.raises(ValueError, match="LongformerForTokenClassification does not; use pooling='cls'"):
        adapt(tiny_model(task="TOKEN_CLS"), "propagation", "TOKEN_CLS", pooling="prefix")


@pytest.mark.parametrize("task", HEADS)
@both_methods
@every_family
def test_every_task_runs_and_learns(family: str, method: str, task: str) -> None:
    model = tiny_model(family, task)
    adapted = adapt(model, method, task)
    inputs = batch(model, [16, 16])
    if task == "QUESTION_ANS":
        if family == "longformer":  # Hugging Face finds the question by three separators
            inputs["input_ids"][:, [5, 6, 15]] = model.config.sep_token_id
        output = adapted(**inputs, start_positions=torch.tensor([3, 1]), end_positions=torch.tensor([4, 5]))
        assert output.start_logits.shape == (2, 16)
    elif task == "TOKEN_CLS":
        output = adapted(**inputs, labels=torch.randint(0, 3, (2, 16)))
        assert output.logits.shape == (2, 16, 3)
    elif task == "SEQ_CLS":
        output = adapted(**inputs, labels=torch.tensor([0, 1]))
        assert output.logits.shape == (2, 3)
    else:
        output = adapted(**inputs)
        assert output.last_hidden_state.shape == (2, 16, 32)
        output.loss = output.last_hidden_state.square().sum()
    output.loss.backward()
    assert adapted.get_prefix().grad.abs().sum() > 0


# --- dropout, initialisation, reparameterisation ----------------------------------------------------------------------


@both_methods
@every_family
def test_prefix_dropout_differs_by_example_and_only_in_training(family: str, method: str) -> None:
    model = adapt(tiny_model(family), method, length=6, prefix_dropout=0.5)
    model.set_prefix(torch.randn(model.get_prefix().shape))
    inputs = batch(model, [12])
    twice = {name: value.expand(2, -1) for name, value in inputs.items()}
    logits = model(**twice).logits
    torch.testing.assert_close(logits[0], logits[1])
    model.train()
    logits = model(**twice).logits
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)
    # p = 0 is off
    still = adapt(tiny_model(family), method, prefix_dropout=0.0).train()
    assert torch.equal(still(**twice).logits, still.eval()(**twice).logits)


def test_prefix_dropout_keeps_the_expected_value() -> None:
    model = adapt(tiny_model(), "propagation", prefix_dropout=0.25).train()
    layer = model.base_model.prefix_layer()
    model.set_prefix(torch.ones_like(model.get_prefix()))
    drawn = layer.prefixes["default"].layer(1, 4000)
    assert drawn.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert drawn.mean().item() == pytest.approx(1.0, abs=0.01)
    assert (drawn == 0).float().mean(dim=0).max() < 0.35  # no position is dropped for every example


def nearest(rows: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Largest difference of each row to the known row nearest to it."""
    return (rows[:, None] - known[None]).abs().amax(dim=-1).amin(dim=1)


def test_normal_initialisation_and_its_seed() -> None:
    prefixes = []
    for _ in range(2):
        model = tiny_model("roberta", hidden_size=64)
        torch.manual_seed(7)
        prefixes.append(adapt(model, "propagation", length=30).get_prefix())
    assert torch.equal(*prefixes)
    assert prefixes[0].std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("layout", ["paper", "reference"])
@every_family
def test_vocabulary_initialisation_of_propagation_is_real_tokens(family: str, layout: str) -> None:
    """At the start the model is the base model with j real tokens in front of layer 1."""
    model = tiny_model(family, "FEATURE_EXTRACTION")
    embedded = {
        row.numpy().tobytes()
        for word in range(97)
        for row in model.embeddings(input_ids=torch.full((1, 5), word))[0].detach()
    }
    adapted = adapt(model, "propagation", "FEATURE_EXTRACTION", length=5, init="vocab", layout=layout)
    prefix = adapted.get_prefix().detach()
    assert torch.equal(prefix[1:], torch.zeros_like(prefix[1:]))
    if layout == "paper":
        assert all(row.numpy().tobytes() in embedded for row in prefix[0])
    else:
        rows = prefix[0] + adapted.base_model.prefix_layer().backbone.embed_empty_words(5).detach()
        known = torch.stack([torch.frombuffer(bytearray(row), dtype=torch.float32) for row in embedded])
        assert (nearest(rows, known) < 1e-5).all()


@every_family
def test_vocabulary_initialisation_of_tuning_is_the_models_own_keys(family: str) -> None:
    model = tiny_model(family, "FEATURE_EXTRACTION")
    adapted = adapt(model, "tuning", "FEATURE_EXTRACTION", length=5, init="vocab")
    prefix = adapted.get_prefix().detach()
    key = model.encoder.layer[0].attention.self.key
    known = torch.cat(
        [key(model.embeddings(input_ids=torch.full((1, 5), word)))[0] for word in range(97)]
    ).detach()
    rows = prefix[0, 0].transpose(0, 1).flatten(1)
    assert (nearest(rows, known) < 1e-5).all()
    assert adapted.training is False and prefix[2].std() > 0


@both_methods
@every_family
def test_reparameterisation_trains_a_network_and_saves_the_prefix(family: str, method: str, tmp_path: Path) -> None:
    model = adapt(tiny_model(family), method, reparameterize=True, reparameterize_hidden=16)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert sum("network" in name for name in trained) == 5
    assert not any(name.endswith("prefix.default.weight") for name in trained)
    assert 0.01 < model.get_prefix().std().item() < 0.04
    inputs = batch(model, [11, 6])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    before = model.get_prefix().detach().clone()
    model(**inputs, labels=torch.tensor([0, 1])).loss.backward()
    optimizer.step()
    assert not torch.allclose(model.get_prefix(), before)

    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert not any("network" in name for name in saved)
    again = PeftModel.from_pretrained(tiny_model(family), tmp_path)
    assert not any("network" in name for name, _ in again.named_parameters())
    assert_same_bits(again(**inputs), model(**inputs))

    # Training can go on from the saved prefix, with a new network.
    onwards = PeftModel.from_pretrained(tiny_model(family), tmp_path, is_trainable=True)
    torch.testing.assert_close(onwards.get_prefix(), model.get_prefix())
    assert any("network" in name for name, _ in onwards.named_parameters())
    onwards.set_prefix(torch.full_like(onwards.get_prefix(), 0.25))
    torch.testing.assert_close(onwards.get_prefix(), torch.full_like(onwards.get_prefix(), 0.25))


# --- bad input --------------------------------------------------------------------------------------------------------


def test_unsupported_family_is_named() -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=50, dim=16, n_layers=1, n_heads=2))
    with pytest.raises(ValueError, match="'distilbert' model; use one of these model types: bert, .*longformer"):
        adapt(model, "propagation")


@both_methods
def test_prefix_that_leaves_no_room(method: str) -> None:
    with pytest.raises(ValueError, match="num_virtual_tokens=128 leaves no room for text.*reads 128 tokens"):
        adapt(tiny_model("roberta"), method, length=128)
    adapt(tiny_model("roberta"), method, length=127)


@pytest.mark.parametrize("layout", ["paper", "reference"])
@both_methods
@every_family
def test_sequences_up_to_the_limit_and_no_further(family: str, method: str, layout: str) -> None:
    positions = 130 if family != "longformer" else 66
    model = tiny_model(family, max_position_embeddings=positions, attention_window=[8, 8, 8])
    adapted = adapt(model, method, length=4, layout=layout)
    room = positions - (0 if family == "bert" else 2) - (4 if layout == "reference" else 0)
    assert torch.isfinite(adapted(**batch(model, [room])).logits).all()
    for inputs in (batch(model, [room + 1]), batch(model, [room + 9, 3])):
        length = inputs["attention_mask"].sum(dim=1).max()
        with pytest.raises(ValueError, match=f"sequence of {length} tokens is too long.*at most {room}.*lengthen"):
            adapted(**inputs)
    with pytest.raises(ValueError, match=f"at most {room}"):
        adapted(**batch(model, [5]), position_ids=torch.full((1, 5), positions))


@both_methods
def test_full_4096_tokens_fit_in_layout_paper(method: str) -> None:
    model = tiny_model(max_position_embeddings=4098, attention_window=[64, 64, 64])
    adapted = adapt(model, method, length=8)
    inputs = {"input_ids": torch.randint(4, 97, (1, 4096))}
    output = adapted(**inputs, output_hidden_states=True)
    assert output.hidden_states[-1].shape == (1, 4096, 32)
    with pytest.raises(ValueError, match="sequence of 4097 tokens is too long: this longformer model reads at most 4096"):
        adapted(input_ids=torch.randint(4, 97, (1, 4097)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"model_type": "roberta"}, "model_type='longformer', but the model here has 'roberta'"),
        ({"num_hidden_layers": 2, "attention_window": [8, 8]}, "num_layers=3, but the model here has 2"),
        ({"hidden_size": 16}, "token_dim=32, but the model here has 16"),
    ],
)
@both_methods
def test_adapter_of_another_model(method: str, other: dict, message: str, tmp_path: Path) -> None:
    adapt(tiny_model(), method).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{message}; load it onto the model it was trained on"):
        PeftModel.from_pretrained(tiny_model(**other), tmp_path)


def rewrite(folder: Path, change: Any) -> None:
    file = folder / "adapter_model.safetensors"
    saved = load_file(file)
    (name,) = [name for name in saved if "prefixes" in name]
    change(saved, name)
    save_file(saved, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved, name: saved.update({name: saved[name][:2].clone()}), r"shape \[2, .*need \[3, "),
        (lambda saved, name: saved.pop(name), "has no tensor"),
        (lambda saved, name: saved.update({name: saved[name] * float("nan")}), "no finite floats"),
        (lambda saved, name: saved.update({name: saved[name].to(torch.int8)}), "no finite floats"),
    ],
)
@both_methods
def test_tampered_adapter_file(method: str, change: Any, message: str, tmp_path: Path) -> None:
    adapt(tiny_model(), method).save_pretrained(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ValueError, match=f"{message}.*save the adapter again"):
        PeftModel.from_pretrained(tiny_model(), tmp_path)


@pytest.mark.parametrize("kept", [0, 5, 100, 2000])
def test_truncated_adapter_file(kept: int, tmp_path: Path) -> None:
    adapt(tiny_model(), "propagation").save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"adapter_model.safetensors is damaged or incomplete.*save the adapter again"):
        PeftModel.from_pretrained(tiny_model(), tmp_path)
    model = adapt(tiny_model(), "propagation")
    with pytest.raises(ValueError, match="damaged or incomplete"):
        model.load_adapter(tmp_path, "second")


def test_pickled_adapters_are_refused(tmp_path: Path) -> None:
    adapt(tiny_model(), "propagation").save_pretrained(tmp_path, safe_serialization=False)
    assert (tmp_path / "adapter_model.bin").exists()
    with pytest.raises(ValueError, match=r"adapter_model.bin, a pickle.*safetensors only.*safe_serialization=True"):
        PeftModel.from_pretrained(tiny_model(), tmp_path)


def test_two_methods_on_one_model_are_refused() -> None:
    model = adapt(tiny_model(), "propagation")
    with pytest.raises(ValueError, match=r"already carries another prefix method; call unload\(\)"):
        adapt(model.get_base_model(), "tuning")

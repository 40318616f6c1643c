"""CUDA graphs, frozen weights in bfloat16, attention without cuDNN. A stand-in replays graphs: there is no GPU."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor, nn

from prefixprop import attention
from prefixprop.models import gpu
from prefixprop.models.gpu import (
    CudaGraph,
    StaticGradients,
    can_use_cuda_graphs,
    hold_frozen_in_bfloat16,
    padded_length,
    without_cudnn,
)
from prefixprop.predict import reading, token_batches
from prefixprop.train import bank_trainer, train, trainer
from prefixprop.tuners.reader_bank import new_reader

from tiny import adapt, batch, both_methods, tiny_model
from tiny_training import tiny_settings


class Again:
    """Runs again what was recorded, and leaves the results where those of the recording are."""

    def __init__(self, run: Any, inputs: dict[str, Tensor], outputs: Any) -> None:
        self.run, self.inputs, self.outputs = run, inputs, outputs

    def replay(self) -> None:
        found = self.run(dict(self.inputs))
        for old, new in zip(_tensors(self.outputs), _tensors(found), strict=True):
            old.copy_(new)


def _tensors(outputs: Any) -> list[Tensor]:
    outputs = outputs.values() if isinstance(outputs, dict) else outputs
    return [outputs] if isinstance(outputs, Tensor) else [each for each in outputs if each is not None]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that were recorded. A recording computes nothing, so nothing may change while it is made."""
    shapes: list[tuple[int, ...]] = []

    def record(self: CudaGraph, inputs: dict[str, Tensor]) -> Any:
        shapes.append(tuple(inputs.get("input_ids", inputs.get("states")).shape))
        held = {name: tensor.clone() for name, tensor in inputs.items()}
        with torch.random.fork_rng():
            gradients = _gradients(self)
            before = [gradient.clone() for gradient in gradients]
            outputs = self.run(dict(held))
            for gradient, kept in zip(gradients, before, strict=True):
                gradient.copy_(kept)
        return gpu._Recording(Again(self.run, held, outputs), held, outputs)

    monkeypatch.setattr(CudaGraph, "_record", record)
    monkeypatch.setattr(gpu, "peak_of", lambda run: (run(), 8))
    monkeypatch.setattr(gpu, "free_bytes", lambda: 8)
    return shapes


def _gradients(replayed: CudaGraph) -> list[Tensor]:
    """Those that a recorded function changes: of a Trainer's model, or of a bank of readers."""
    owner = getattr(getattr(replayed.run, "func", replayed.run), "__self__", None)
    if hasattr(owner, "optimizer") and hasattr(owner, "bank"):
        return list(owner.optimizer.gradients)
    parameters = owner.model.parameters() if hasattr(owner, "model") else ()
    return [each.grad for each in parameters if each.grad is not None]


def tokens(*shape: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(5, 50, shape)}


@pytest.mark.parametrize(
    ("shapes", "most", "needed", "recorded"),
    [
        ([(2, 8), (3, 8), (2, 8), (2, 8), (3, 8)], 9, [8, 8], [(2, 8), (3, 8)]),  # the second of a shape
        ([(2, 9), (2, 8), (1, 8)] * 3, 1, [9, 8, 8], [(2, 8)]),  # one without room, and one too many
    ],
)
def test_recorded_or_not_each_call_returns_its_own_numbers(
    shapes: list, most: int, needed: list[int], recorded: list, played: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MOST_RECORDINGS", most)
    of_shapes = iter(needed)  # in their order
    monkeypatch.setattr(gpu, "peak_of", lambda run: (run(), next(of_shapes)))
    replayed = CudaGraph(lambda inputs: (inputs["input_ids"] * 2, None))
    several = [tokens(*shape) for shape in shapes]
    outputs = [replayed(inputs) for inputs in several]
    assert all(torch.equal(out[0], inputs["input_ids"] * 2) for out, inputs in zip(outputs, several, strict=True))
    assert played == recorded


def test_the_first_call_of_a_thread_is_not_recorded(played: list) -> None:
    """A recording cannot make the handle of cuBLAS that every thread needs."""
    replayed = CudaGraph(lambda inputs: inputs["input_ids"] + 1)
    recorded = []
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for thread, length in ((one, 8), (other, 8), (one, 9), (other, 9), (one, 8), (other, 8)):
            inputs = tokens(2, length)
            assert torch.equal(thread.submit(replayed, inputs).result(), inputs["input_ids"] + 1)
            recorded.append(len(played))
    assert recorded == [0, 0, 0, 1, 2, 2]


def test_without_memory_for_it_nothing_is_recorded(played: list, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(CudaGraph, "_record", tried)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    replayed = CudaGraph(lambda inputs: inputs["input_ids"] + 1)
    for inputs in (tokens(2, 8) for _ in range(4)):
        assert torch.equal(replayed(inputs), inputs["input_ids"] + 1)
    assert tried.call_count == 1


def test_lengths_come_again_and_waste_little() -> None:
    lengths = {padded_length(length, 4096) for length in range(1, 4097)}
    assert len(lengths) < 40
    assert all(length <= padded_length(length, 4096) < max(length + 64, length * 1.13) for length in range(1, 4097))


def test_held_gradients_are_those_of_a_model_without_them() -> None:
    torch.manual_seed(0)
    first = nn.Linear(3, 2)
    second = nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    unused = nn.Linear(3, 2)  # learns nothing, and must get no gradient
    held = StaticGradients()
    optimizers = [torch.optim.AdamW(model.parameters(), weight_decay=0.1) for model in (first, second)]
    addresses = set()
    for _ in range(3):
        rows = torch.randn(2, 4, 3)
        held.attach()
        for half in rows:
            first(half).square().sum().backward()
            held.learn(nn.ModuleList([first, unused]))
            held.attach()
            second(half).square().sum().backward()
        addresses.add(tuple(each.grad.data_ptr() for each in first.parameters()))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert all(torch.equal(one, two) for one, two in zip(first.parameters(), second.parameters(), strict=True))
    assert len(addresses) == 1
    assert all(each.grad is None for each in unused.parameters())


@pytest.mark.parametrize("method", ["prefix-propagation", "fine-tuning", "readers"])
def test_a_run_of_recorded_steps_is_the_same_run(
    method: str, tmp_path: Path, played: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "can_use_cuda_graphs", lambda model: True)
    monkeypatch.setattr(bank_trainer, "can_use_cuda_graphs", lambda model: True)
    settings = tiny_settings(tmp_path, method=method, epochs=3, batch_size=4, device_batch_size=2, max_length=64)
    recorded = train(settings, tmp_path / "recorded")
    assert len(played) >= 2  # of steps and of evaluations
    monkeypatch.setattr(gpu, "MOST_RECORDINGS", 0)
    plain = train(settings, tmp_path / "plain")
    assert recorded.metrics["dev"] == plain.metrics["dev"]
    ones, twos = (sorted(path.rglob("*.safetensors")) for path in (recorded.run_dir, plain.run_dir))
    for one, two in zip(ones, twos, strict=True):
        of_one, of_two = load_file(one), load_file(two)
        assert of_one and all(torch.equal(tensor, of_two[name]) for name, tensor in of_one.items())


@pytest.mark.parametrize("of_readers", [False, True])
def test_predictions_of_recorded_passes(of_readers: bool, played: list, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("longformer").eval()
    attention.install(model)
    ids = [torch.randint(5, 50, (length,)).numpy() for length in (7, 30, 12, 9, 20, 8, 5)]
    assert not can_use_cuda_graphs(model)  # without a GPU
    encoder = reading.ReadingEncoder(model)
    # Readers in two banks; the last one is not asked.
    encoder.add(
        [new_reader(encoder.backbone, length, classes, seed=length) for length, classes in ((2, 2), (3, 4), (2, 3))]
    )

    def answers(batch_tokens: int) -> list[Any]:
        if of_readers:
            return encoder.start(ids, [(0,), (1,)], 1, batch_tokens, False, 128)()
        return token_batches.start_classifying(model, ids, 1, batch_tokens, False, 128)()

    expected = answers(128)
    monkeypatch.setattr(token_batches, "can_use_cuda_graphs", lambda model: True)
    monkeypatch.setattr(reading, "can_use_cuda_graphs", lambda model: True)
    for batch_tokens in (128, 128, 640, 640):
        for one, two in zip(answers(batch_tokens), expected, strict=True):
            assert abs(one - two).max() < 1e-5
    # Three batches of two texts and one of one; then one of seven, filled up to eight.
    assert played == [(2, 64), (1, 64), (8, 64)]


def test_only_frozen_weights_are_converted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    exact = model[0].weight.clone()
    hold_frozen_in_bfloat16(model)
    assert {parameter.dtype for parameter in model[0].parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model[1].parameters()} == {torch.float32}
    assert torch.equal(model[0].weight, exact.to(torch.bfloat16))
    assert not model[0].weight.requires_grad and model[1].weight.requires_grad


@pytest.mark.parametrize("kernel", [None, "exp"])
@both_methods
@pytest.mark.parametrize("family", ["longformer", "roberta"])
def test_a_held_model_is_as_near_the_exact_one_as_autocast_is(family: str, method: str, kernel: str | None) -> None:
    exact = adapt(tiny_model(family), method, kernel=kernel, prefix_dropout=0.0)
    converted, held = copy.deepcopy(exact), copy.deepcopy(exact)
    hold_frozen_in_bfloat16(held)
    expected, usual, found = step(exact, False), step(converted, True), step(held, True)
    assert len(expected) == len(found) > 2  # logits, and the gradients of prefix and head
    for right, theirs, ours in zip(expected, usual, found, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - right).norm() <= 2 * (theirs - right).norm() + 0.01 * right.norm()


def test_a_model_that_only_predicts_is_held_whole() -> None:
    exact = adapt(tiny_model("longformer"), "propagation")
    inputs = batch(exact, [18, 11])
    expected = exact(**inputs).logits
    hold_frozen_in_bfloat16(exact.requires_grad_(False))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = exact(**inputs).logits.float()
    assert (found - expected).norm() <= 0.05 * expected.norm()


def test_the_input_of_lora_stays_in_half_precision() -> None:
    model = get_peft_model(tiny_model("longformer"), LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    hold_frozen_in_bfloat16(model)
    seen: list[torch.dtype] = []
    for name, module in model.named_modules():
        if name.endswith("lora_A.default") and "layer.0." not in name:  # the embeddings are in float32
            module.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    step(model, True)
    assert seen and set(seen) == {torch.bfloat16}


def step(model: Any, autocast: bool) -> list[Tensor]:
    inputs = batch(model, [18, 11])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(**inputs)
        loss = nn.functional.cross_entropy(output.logits.float(), torch.tensor([0, 1]))
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [output.logits.detach().float(), *gradients]


def test_leaves_out_cudnn_alone_and_puts_it_back() -> None:
    kinds = ("cudnn", "flash", "mem_efficient", "math")

    def enabled() -> list[bool]:
        return [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds]

    before = enabled()
    with without_cudnn():
        assert enabled() == [False, True, True, True]
    assert enabled() == before

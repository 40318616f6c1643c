"""How the Trainer is set up, and the order of training documents."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainingArguments

from prefixprop.train import RunDirectory, RunSettings
from prefixprop.train.single_run import training_arguments
from prefixprop.train.trainer import LengthGroupedOrder, send_to_host


def arguments_of(folder: Path, **changes: Any) -> TrainingArguments:
    settings = RunSettings(epochs=1, learning_rate=1e-3, precision="fp32", **changes)
    run: Any = SimpleNamespace(settings=settings, at_once=8)
    return training_arguments(run, RunDirectory(folder))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 16), ({"method": "fine-tuning"}, 16), ({"method": "head-only"}, 8), ({"gradient_checkpointing": True}, 8)],
)
def test_evaluation_takes_no_more_memory_than_training(
    changes: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    assert arguments_of(tmp_path, **changes).per_device_eval_batch_size == expected


@pytest.mark.parametrize("has_gpu", [False, True])
def test_batches_go_to_a_gpu_while_it_works(has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    arguments = arguments_of(tmp_path)
    assert arguments.accelerator_config.non_blocking is has_gpu and arguments.report_to == []


def test_a_number_of_a_gpu_is_read_after_it_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = torch.tensor(float("nan"))  # what is there before the copy
    asked: list[bool] = []

    class OnGpu:
        is_cuda, device = True, torch.device("cuda")

        def detach(self) -> OnGpu:
            return self

        def to(self, device: str, non_blocking: bool) -> Tensor:
            asked.append(non_blocking)
            return memory

    class Event:
        stream: Any = None

        def record(self, stream: Any) -> None:
            self.stream = stream

        def synchronize(self) -> None:
            assert self.stream == "the stream of cuda"
            memory.fill_(3.0)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    arrived = send_to_host(OnGpu())  # type: ignore[arg-type]
    assert asked == [True] and memory.isnan()
    assert arrived() == 3.0
    assert send_to_host(torch.tensor(2.0, requires_grad=True))() == 2.0, "on a CPU it is there"


GENERATOR = random.Random(1)
LENGTHS = [GENERATOR.randint(5, 4000) for _ in range(1001)]


def steps(order: LengthGroupedOrder, epoch: int) -> list[list[int]]:
    order.set_epoch(epoch)
    places = list(order)
    return [places[start : start + order.batch_size] for start in range(0, len(places), order.batch_size)]


def padded_tokens(batches: list[list[int]]) -> int:
    return sum(len(batch) * max(LENGTHS[place] for place in batch) for batch in batches)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 1001])
def test_every_document_once(count: int) -> None:
    order = LengthGroupedOrder(LENGTHS[:count], 8, seed=1)
    assert sorted(order) == list(range(count)) and len(order) == count


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    order = LengthGroupedOrder(LENGTHS, 8, seed=1)
    first, second = steps(order, 0), steps(order, 1)
    random.seed(5)
    assert steps(order, 0) == first != second
    assert steps(LengthGroupedOrder(LENGTHS, 8, seed=2), 0) != first


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_steps_and_their_parts_are_of_like_length_and_in_no_order(epoch: int) -> None:
    batches = steps(LengthGroupedOrder(LENGTHS, 32, seed=1), epoch)
    shuffled = random.Random(1).sample(range(len(LENGTHS)), len(LENGTHS))
    at_random = [shuffled[start : start + 32] for start in range(0, len(shuffled), 32)]
    assert padded_tokens(batches) < 1.4 * sum(LENGTHS) < 0.75 * padded_tokens(at_random)
    parts = [step[start : start + 8] for step in batches for start in range(0, len(step), 8)]
    assert padded_tokens(parts) < 1.1 * sum(LENGTHS)
    longest = [max(LENGTHS[place] for place in step) for step in batches]
    assert longest != sorted(longest, reverse=True)


def test_the_first_step_of_all_has_the_longest_document_and_the_last_is_short() -> None:
    """Memory that is too small is found at once; later epochs begin and end with any documents."""
    order = LengthGroupedOrder(LENGTHS, 8, seed=1)
    epochs = [steps(order, epoch) for epoch in range(9)]
    first = [LENGTHS[epoch[0][0]] for epoch in epochs]
    assert first[0] == max(LENGTHS) > min(first)
    for epoch in epochs:
        assert [len(step) for step in epoch] == [8] * 125 + [1]
    assert len({epoch[-1][0] for epoch in epochs}) > 1


@pytest.mark.parametrize("count", [64, 512])
def test_a_document_meets_others_in_every_epoch(count: int) -> None:
    """Also where all documents make only a few steps: sorted by length alone, those would always be the same."""
    order = LengthGroupedOrder(LENGTHS[:count], 32, seed=1)
    met: list[set[int]] = [set() for _ in range(count)]
    for epoch in range(10):
        for step in steps(order, epoch):
            for place in step:
                met[place].update(step)
    assert sum(map(len, met)) / count > 45

"""Documents as readers see them: kept, and computed again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from prefixprop.backbones import find_backbone
from prefixprop.backbones.base import Text
from prefixprop.progress import Progress
from prefixprop.train import text_states
from prefixprop.train.text_states import TextStates, free_memory, place_for

from tiny import every_family, tiny_model

LENGTHS = [5, 17, 0, 9, 17, 1, 12]


class Counted(Progress):
    def __init__(self) -> None:
        self.done: list[tuple[int, int]] = []

    def advance(self, what: str, done: int, total: int, detail: str = "") -> None:
        self.done.append((done, total))


def states_of(family: str = "roberta", lengths: Sequence[int] = LENGTHS, **options: Any) -> TextStates:
    generator = np.random.default_rng(0)
    documents = [generator.integers(4, 97, size) for size in lengths]
    model = tiny_model(family)
    pad = model.config.pad_token_id
    return TextStates(find_backbone(model), documents, pad, contextlib.nullcontext, **{"batch_tokens": 40} | options)


def read(text: TextStates, indices: Sequence[int]) -> Text:
    return text.text(text.inputs(indices))


@pytest.mark.parametrize("indices", [[3], [1, 4], [6, 2, 5, 0], [2], [2, 5]])
@every_family
def test_kept_and_computed_are_the_same(family: str, indices: list[int]) -> None:
    kept, computed = states_of(family), states_of(family, keep=False)
    kept.fill(Progress())
    computed.fill(Progress())
    assert kept.kept_on is not None and computed.kept_on is None
    found, expected = read(kept, indices), read(computed, indices)
    lengths = [max(1, LENGTHS[index]) for index in indices]
    assert len(found.states) == len(expected.states) == 3
    assert found.states[0].shape == expected.states[0].shape == (len(indices), max(lengths), 32)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    for text in (found, expected):
        assert text.pattern.is_masked.equal(~real)
        assert (text.pattern.unpadded_rows is None) == (len(set(lengths)) > 1)
    for one, two in zip(found.states, expected.states, strict=True):
        torch.testing.assert_close(one[real], two[real], atol=1e-5, rtol=1e-5)
        assert one.isfinite().all() and two.isfinite().all()


def test_is_computed_once() -> None:
    text, seen = states_of(), []
    text.backbone.layers[0].register_forward_hook(lambda *_: seen.append(1))
    progress = Counted()
    text.fill(progress)
    batches = len(list(text.batches(range(len(LENGTHS)))))
    assert len(seen) == batches == len(progress.done) and progress.done[-1] == (7, 7)
    assert sum(state.numel() * state.element_size() for state in text._kept.values()) == text.bytes
    assert progress.done == sorted(progress.done)
    read(text, [0, 1])
    assert len(seen) == batches
    again = states_of()
    again.fill(Progress())
    assert all(one.equal(two) for one, two in zip(read(text, [6, 0]).states, read(again, [6, 0]).states, strict=True))


def test_batches_are_of_similar_length() -> None:
    text = states_of(batch_tokens=30)
    chosen = [6, 5, 4, 3, 2, 1]
    batches = list(text.batches(chosen))
    assert batches == [[4], [1], [6, 3], [5, 2]]  # of 17, 17, 12 and 9, 1 and 1 tokens
    assert list(text.batches([])) == []


@pytest.mark.parametrize("limit", ["max\n", "1000000000000000\n", "{rss}"])
def test_a_container_limits_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, limit: str) -> None:
    rss = text_states.psutil.Process().memory_info().rss
    (tmp_path / "memory.max").write_text(limit.format(rss=rss + 2**30))
    monkeypatch.setattr(text_states, "_CGROUP", tmp_path / "memory.max")
    free = free_memory(torch.device("cpu"))
    if "rss" in limit:
        assert free <= 2**30 + 2**28
    else:
        assert 0 < free <= text_states.psutil.virtual_memory().total


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        ({GPU: 200, CPU: 0}, GPU),
        ({GPU: 199, CPU: 200}, CPU),
        ({GPU: 199, CPU: 199}, None),
        ({GPU: 900, CPU: 900}, GPU),
    ],
)
def test_states_stay_on_the_device_then_on_the_host(
    monkeypatch: pytest.MonkeyPatch, free: dict[torch.device, int], expected: torch.device | None
) -> None:
    monkeypatch.setattr(text_states, "free_memory", free.__getitem__)
    assert place_for(100, GPU) == expected
    assert place_for(100, CPU) == (CPU if free[CPU] >= 200 else None)

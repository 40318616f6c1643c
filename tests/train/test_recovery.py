"""Checkpoints on their own; how runs go on from them is in test_resume and test_faults."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from prefixprop.train import TrainingError
from prefixprop.train.recovery import (
    Snapshot,
    generator_states,
    list_checkpoints,
    read_checkpoint,
    restore_generators,
    trusted_checkpoint,
    write_checkpoint,
)

from tiny_training import Notes


def snapshot() -> tuple[Snapshot, torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.randn(3, 2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    progress = {"epoch_loss": 0.5, "seconds": 2.0}
    trained = {"w": weight.detach()}
    parts = optimizer.state_dict(), {"last_epoch": 3}, [generator_states()], progress
    return Snapshot(trained, None, *parts), optimizer


def write(folder: Path, step: int, given: Snapshot | None = None) -> Path:
    write_checkpoint(folder, step, given or snapshot()[0], "{}")
    return folder / f"step-{step:08}"


@pytest.mark.parametrize(
    ("best", "stored"),
    [(lambda given: None, 0), (lambda given: given.trained, 0), (lambda given: {"w": torch.full((3, 2), 7.0)}, 1)],
    ids=["no best", "its own is the best", "another's is the best"],
)
def test_what_is_written_is_read(tmp_path: Path, best: Callable[[Snapshot], Any], stored: int) -> None:
    given, optimizer = snapshot()
    given = replace(given, best=best(given))
    path = write(tmp_path, 1, given)
    read = read_checkpoint(path)
    assert torch.equal(read.trained["w"], given.trained["w"])
    assert read.scheduler == given.scheduler and read.progress == given.progress
    optimizer.load_state_dict(read.optimizer)
    again = optimizer.state_dict()
    assert again["state"][0].keys() == given.optimizer["state"][0].keys()
    assert all(torch.equal(again["state"][0][name], value) for name, value in given.optimizer["state"][0].items())
    assert again["param_groups"][0]["lr"] == 0.1
    assert (read.best is None) == (given.best is None)
    if read.best is not None and given.best is not None:
        assert read.best.keys() == {"w"} and torch.equal(read.best["w"], given.best["w"])
    names = load_file(path / "tensors.safetensors")
    assert sum(name.startswith("best") for name in names) == stored
    restore_generators(given.generators[0])
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    restore_generators(read.generators[0])
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn


def test_what_the_system_refuses_to_write_leaves_the_one_before(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    before = (path / "tensors.safetensors").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(TrainingError, match=r"step-00000001: the checkpoint of .*File too large.*--resume"):
            write(tmp_path, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert trusted_checkpoint(tmp_path) == path and (path / "tensors.safetensors").read_bytes() == before
    assert list(tmp_path.iterdir()) == [path], "nothing half-written is left"


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "trainer_state.json", "manifest.json"])
def test_any_changed_or_missing_file_is_noticed(tmp_path: Path, name: str) -> None:
    path, notes = write(tmp_path, 1), Notes()
    content = (path / name).read_bytes()
    for changed in (b"", content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
        (path / name).write_bytes(changed)
        assert trusted_checkpoint(tmp_path, notes) is None, changed[-5:]
    (path / name).unlink()
    assert trusted_checkpoint(tmp_path, notes) is None
    assert notes.notes[-1] == f"{path}: {name} is missing; the run starts from the beginning instead"


def test_the_latest_that_can_be_trusted_is_found(tmp_path: Path) -> None:
    assert trusted_checkpoint(tmp_path / "none") is None
    first, second, notes = write(tmp_path, 3), write(tmp_path, 6), Notes()
    assert trusted_checkpoint(tmp_path, notes) == second and not notes.notes
    (second / "state.json").write_text("{")
    assert trusted_checkpoint(tmp_path, notes) == first and len(notes.notes) == 1


def test_the_newest_and_the_one_before_stay(tmp_path: Path) -> None:
    """A run that has passed over a damaged one writes an earlier step than that."""
    (tmp_path / "notes").mkdir()
    for step, kept in ((1, [1]), (2, [1, 2]), (10, [2, 10]), (3, [2, 3])):
        write(tmp_path, step)
        assert [int(path.name[5:]) for path in list_checkpoints(tmp_path)] == kept
    assert (tmp_path / "notes").is_dir()

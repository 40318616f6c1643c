"""Checkpoints on their own."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from prefixprop.training.checkpoints import (
    Snapshot,
    damage,
    find_checkpoint,
    folder_of_step,
    generator_states,
    list_checkpoints,
    read_checkpoint,
    remove_old,
    restore_generators,
    write_checkpoint,
)


def snapshot() -> tuple[Snapshot, torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.randn(3, 2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    progress = {"epoch_loss": 0.5, "seconds": 2.0}
    return Snapshot(
        {"w": weight.detach()}, optimizer.state_dict(), {"last_epoch": 3}, [generator_states()], progress
    ), optimizer


def write(folder: Path, step: int, best: int | None = None) -> Path:
    path = folder_of_step(folder, step)
    write_checkpoint(path, snapshot()[0], json.dumps({"best_global_step": best}))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    given, optimizer = snapshot()
    write_checkpoint(tmp_path / "step-1", given, "{}")
    read = read_checkpoint(tmp_path / "step-1")
    assert torch.equal(read.trained["w"], given.trained["w"])
    assert read.scheduler == given.scheduler and read.progress == given.progress
    optimizer.load_state_dict(read.optimizer)
    again = optimizer.state_dict()
    assert again["state"][0].keys() == given.optimizer["state"][0].keys()
    for name, value in given.optimizer["state"][0].items():
        assert torch.equal(again["state"][0][name], value)
    assert again["param_groups"][0]["lr"] == 0.1


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    given, _ = snapshot()
    write_checkpoint(tmp_path / "step-1", given, "{}")
    restore_generators(given.generators[0])
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    restore_generators(read_checkpoint(tmp_path / "step-1").generators[0])
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "trainer_state.json", "manifest.json"])
def test_any_changed_or_missing_file_is_noticed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 1)
    assert damage(path) is None
    content = (path / name).read_bytes()
    for changed in (b"", content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
        (path / name).write_bytes(changed)
        assert damage(path) is not None, changed[-5:]
    (path / name).unlink()
    assert damage(path) == f"{name} is missing"


def test_the_latest_that_can_be_trusted_is_found(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "none") == (None, [])
    for step, best in ((3, 3), (6, 6), (9, 6)):
        write(tmp_path, step, best)
    assert find_checkpoint(tmp_path) == (folder_of_step(tmp_path, 9), [])
    (folder_of_step(tmp_path, 6) / "state.json").write_text("{")
    found, complaints = find_checkpoint(tmp_path)
    assert found == folder_of_step(tmp_path, 3) and len(complaints) == 2


def test_old_ones_go_and_the_best_stays(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 10):
        write(tmp_path, step)
    (tmp_path / "notes").mkdir()
    remove_old(tmp_path, best=2)
    assert [int(path.name[5:]) for path in list_checkpoints(tmp_path)] == [2, 4, 10]
    assert (tmp_path / "notes").is_dir()

"""When checkpoints are written, and that a run ends with its best epoch whether or not one was written then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import load_peft_weights
from transformers import TrainerCallback

from prefixprop.train import RunResult, RunSettings, callbacks, train
from prefixprop.train.checkpoints import list_checkpoints, read_checkpoint

from killed_runs import KillAt, assert_same_end, killed
from tiny_training import tiny_settings

NEVER = 1e6


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documents and the model of all runs are."""
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="module")
def whole(documents: Path) -> RunResult:
    """A run with a checkpoint after each of its five epochs; the last two are worse than one before them."""
    run = train(settings_of(documents), documents / "whole")
    assert run.metrics["best_epoch"] < 4
    nll = [line["dev_nll"] for line in history(run)]
    assert nll[run.metrics["best_epoch"] - 1] != pytest.approx(nll[-1], abs=1e-3), "the last is not like the best"
    return run


def settings_of(documents: Path, **changes: Any) -> RunSettings:
    return tiny_settings(documents, epochs=5, **changes)


def history(run: RunResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.run_dir / "history.jsonl").read_text().splitlines()]


def checkpoints_of(run_dir: Path) -> list[Path]:
    return list_checkpoints(run_dir / "checkpoints")


class Saved(TrainerCallback):
    """Notes the steps of checkpoints, on a clock by which an epoch takes ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[int] = []

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.now += 10

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)


@pytest.mark.parametrize(
    ("seconds", "every", "steps"),
    [
        (15, 0, [6, 12]),
        (10, 2, [2, 4, 8, 10, 14]),  # never ten seconds after the last one
        (0, 2, [2, 3, 4, 6, 8, 9, 10, 12, 14, 15]),
    ],
)
def test_the_age_of_the_last_one_decides(
    documents: Path, tmp_path: Path, seconds: float, every: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Saved()
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: saved.now))
    settings = settings_of(documents, checkpoint_seconds=seconds, checkpoint_every=every, keep_checkpoints=True)
    train(settings, tmp_path / "run", callbacks=[saved])
    assert saved.steps == steps
    kept = [int(path.name.removeprefix("step-")) for path in checkpoints_of(tmp_path / "run")]
    assert kept == steps[-2:], "the last two"


def test_a_run_without_checkpoints_ends_with_its_best(documents: Path, whole: RunResult, tmp_path: Path) -> None:
    settings = settings_of(documents, checkpoint_seconds=NEVER, keep_checkpoints=True)
    run = train(settings, tmp_path / "run")
    assert not checkpoints_of(run.run_dir)
    best = history(run)[run.metrics["best_epoch"] - 1]
    assert best["dev_nll"] == pytest.approx(run.metrics["dev"]["nll"], abs=1e-6)
    assert_same_end(run, whole)


def test_killed_before_the_first_checkpoint(documents: Path, whole: RunResult, tmp_path: Path) -> None:
    settings = settings_of(documents, checkpoint_seconds=NEVER)
    killed(lambda: train(settings, tmp_path / "run", callbacks=[KillAt(14)]))
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 4
    assert not checkpoints_of(tmp_path / "run")
    assert_same_end(train(settings, tmp_path / "run", resume=True), whole)


def test_a_later_checkpoint_has_the_best_epoch(documents: Path, whole: RunResult, tmp_path: Path) -> None:
    settings = settings_of(documents, checkpoint_every=13)
    killed(lambda: train(settings, tmp_path / "run", callbacks=[KillAt(14)]))
    before, latest = checkpoints_of(tmp_path / "run")
    assert latest.name == "step-00000013"
    shutil.rmtree(before)
    snapshot = read_checkpoint(latest)
    kept = load_peft_weights(str(whole.run_dir / "adapter"), device="cpu")
    prefix = next(tensor for name, tensor in kept.items() if "prefix" in name)
    assert snapshot.best is not None and snapshot.best.keys() == snapshot.trained.keys()
    (name,) = [name for name, tensor in snapshot.best.items() if torch.equal(tensor, prefix)]
    assert not torch.equal(snapshot.trained[name], prefix)
    resumed = train(settings, tmp_path / "run", resume=True)
    assert_same_end(resumed, whole)
    again = load_peft_weights(str(resumed.run_dir / "adapter"), device="cpu")
    assert all(torch.equal(again[name], tensor) for name, tensor in kept.items())


def test_a_run_that_keeps_its_last_epoch_stores_no_best(documents: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(tiny_settings(documents, epochs=2, keep="last", keep_checkpoints=True), run_dir)
    assert [read_checkpoint(folder).best for folder in checkpoints_of(run_dir)] == [None, None]

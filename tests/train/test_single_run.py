"""What happens beside the steps of training: trained alpha in the log, when checkpoints are written, and stopping."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import load_peft_weights
from transformers import TrainerCallback

from prefixprop.progress import handling_signals, interrupt
from prefixprop.train import RunResult, RunSettings, single_run, train, trained_alpha
from prefixprop.train.recovery import list_checkpoints, read_checkpoint
from prefixprop.train.trainer import GracefulStop

from killed_runs import KillAt, assert_same_end, killed
from tiny import adapt, tiny_model
from tiny_training import Notes, history, tiny_settings

NEVER = 1e6


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("head", [f"alpha/layer_{layer}/head_{head}" for layer in (1, 2, 3) for head in (1, 2, 3, 4)]),
        ("query", [f"alpha_query/layer_{layer}/head_{head}" for layer in (1, 2, 3) for head in (1, 2, 3, 4)]),
        (None, []),
    ],
)
def test_every_epoch_has_trained_alpha(mode: str | None, names: list[str], tmp_path: Path) -> None:
    changes = {"alpha": 0.5, "alpha_mode": mode} if mode else {}
    run = train(tiny_settings(tmp_path, epochs=2, kernel="exp", **changes), tmp_path / "run")
    lines = history(run.run_dir)
    assert [[name for name in line if name.startswith("alpha")] for line in lines] == [names, names]
    assert all(lines[0][name] != lines[1][name] for name in names), "it is trained"


def test_values_are_those_of_the_parameter() -> None:
    model = adapt(tiny_model(), "tuning", kernel="poly", alpha_mode="head")
    with torch.no_grad():
        model.get_alpha().copy_(torch.arange(12.0).view(3, 4))
    assert list(trained_alpha(model).values()) == [float(value) for value in range(12)]
    assert trained_alpha(model)["alpha/layer_2/head_3"] == 6.0


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documents and the model of all runs are."""
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="module")
def whole(documents: Path) -> RunResult:
    """A run with a checkpoint after each of its five epochs; the last two are worse than one before them."""
    run = train(settings_of(documents), documents / "whole")
    assert run.metrics["best_epoch"] < 4
    nll = [line["dev_nll"] for line in history(run.run_dir)]
    assert nll[run.metrics["best_epoch"] - 1] != pytest.approx(nll[-1], abs=1e-3), "the last is not like the best"
    return run


def settings_of(documents: Path, **changes: Any) -> RunSettings:
    return tiny_settings(documents, epochs=5, **changes)


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
def test_the_age_of_the_last_checkpoint_decides(
    documents: Path, tmp_path: Path, seconds: float, every: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Saved()
    monkeypatch.setattr(single_run, "time", SimpleNamespace(monotonic=lambda: saved.now))
    settings = settings_of(documents, checkpoint_seconds=seconds, checkpoint_every=every, keep_checkpoints=True)
    train(settings, tmp_path / "run", callbacks=[saved])
    assert saved.steps == steps
    kept = [int(path.name.removeprefix("step-")) for path in checkpoints_of(tmp_path / "run")]
    assert kept == steps[-2:], "the last two"


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


def test_a_run_that_keeps_its_last_epoch_stores_no_best(documents: Path, whole: RunResult, tmp_path: Path) -> None:
    run = train(settings_of(documents, keep="last", keep_checkpoints=True), tmp_path / "run")
    assert [path.name for path in checkpoints_of(run.run_dir)] == ["step-00000012", "step-00000015"]
    assert [read_checkpoint(folder).best for folder in checkpoints_of(run.run_dir)] == [None, None]
    for kept, epoch, words in ((run, -1, True), (whole, whole.metrics["best_epoch"] - 1, False)):
        nll = history(kept.run_dir)[epoch]["dev_nll"]
        assert kept.metrics["dev"]["nll"] == pytest.approx(nll, abs=1e-6)
        card = (kept.run_dir / "README.md").read_text()
        assert ("the last, of epoch 5, is the one that was kept" in card) == words


class AskAt(TrainerCallback):
    """Sends the signal in the middle of a step."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("step", [5, 6])  # in the middle of the second epoch, and its last
def test_a_stopped_run_goes_on_where_it_was(step: int, documents: Path, whole: RunResult, tmp_path: Path) -> None:
    settings, told = settings_of(documents, checkpoint_seconds=NEVER), []
    stop = GracefulStop(Notes(told))
    with pytest.raises(KeyboardInterrupt), handling_signals(stop.ask):
        train(settings, tmp_path / "run", callbacks=[AskAt(step), stop])
    assert told == ["Stopping after this step, with a checkpoint. Press Ctrl-C again to stop at once."]
    assert [path.name for path in checkpoints_of(tmp_path / "run")] == [f"step-{step:08}"]
    assert len(history(tmp_path / "run")) == step // 3
    assert_same_end(train(settings, tmp_path / "run", resume=True), whole)


def test_a_second_signal_ends_it_at_once(documents: Path, tmp_path: Path) -> None:
    stop = GracefulStop(Notes())
    with pytest.raises(KeyboardInterrupt), handling_signals(stop.ask):
        settings = settings_of(documents, checkpoint_seconds=NEVER)
        train(settings, tmp_path / "run", callbacks=[AskAt(5, signal.SIGINT), AskAt(5), stop])
    assert checkpoints_of(tmp_path / "run") == []


@pytest.mark.parametrize("handler", [GracefulStop(Notes()).ask, interrupt])
def test_where_nothing_is_trained_the_end_is_now(handler: Any) -> None:
    with pytest.raises(KeyboardInterrupt), handling_signals(handler):
        os.kill(os.getpid(), signal.SIGTERM)


def test_handlers_are_put_back_and_what_is_ignored_stays_ignored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    asked: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with handling_signals(lambda number, frame: asked.append(number)):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[0])
    assert asked == [signal.SIGTERM]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_gets_no_signals() -> None:
    before, inside = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with handling_signals(interrupt):
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]

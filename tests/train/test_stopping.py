"""Runs that are asked to stop leave a checkpoint, and go on from it as if they had not been."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from prefixprop.processes import handling_signals, interrupt
from prefixprop.train import RunDirectory, train
from prefixprop.train.callbacks import GracefulStop
from prefixprop.train.checkpoints import list_checkpoints

from killed_runs import assert_same_end
from tiny_training import Notes, tiny_settings


class AskAt(TrainerCallback):
    """Sends the signal in the middle of a step."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("step", [5, 6])  # in the middle of the second epoch, and its last
def test_a_stopped_run_goes_on_where_it_was(step: int, tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, checkpoint_seconds=1000.0)
    whole = train(settings, tmp_path / "whole")
    assert whole.metrics["epochs"] * 3 == 9, "three steps in each of three epochs"
    told: list[str] = []
    stop = GracefulStop(Notes(told))
    with pytest.raises(KeyboardInterrupt), handling_signals(stop.ask):
        train(settings, tmp_path / "run", callbacks=[AskAt(step), stop])
    assert told == ["Stopping after this step, with a checkpoint. Once more, and it stops at once."]
    directory = RunDirectory(tmp_path / "run")
    assert [path.name for path in list_checkpoints(directory.checkpoints)] == [f"step-{step:08}"]
    assert len(directory.history.read_text().splitlines()) == step // 3
    assert_same_end(train(settings, tmp_path / "run", resume=True), whole)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    stop = GracefulStop(Notes())
    settings = tiny_settings(tmp_path, checkpoint_seconds=1000.0)
    with pytest.raises(KeyboardInterrupt), handling_signals(stop.ask):
        train(settings, tmp_path / "run", callbacks=[AskAt(5, signal.SIGINT), AskAt(5), stop])
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == []


def test_where_nothing_is_trained_the_end_is_now() -> None:
    stop = GracefulStop(Notes())
    with pytest.raises(KeyboardInterrupt), handling_signals(stop.ask):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), handling_signals(interrupt):
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

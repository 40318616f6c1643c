"""Stopping a run where it can go on: a first signal asks for a checkpoint, a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from prefixprop.training.callbacks import ends_epoch

# Ctrl-C, and what `kill` and batch systems send before they kill.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "Stopping, with a checkpoint of every run that is under way. Once more, and it stops at once."
SECONDS_TO_STOP = 60  # in which a run ends its step and writes a checkpoint


class StopWatch(TrainerCallback):
    """Once it is asked to, ends training at the next step: after a checkpoint it raises `KeyboardInterrupt`.

    An epoch's last step is judged first, as in `CheckpointTimes`. Only for a single process: several would not stop
    at the same step.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.is_training = self.is_asked = False

    def ask(self, *_: Any) -> None:
        """The handler of a signal; where there is nothing to save, or nobody wants to wait, the end is now."""
        if self.is_asked or not self.is_training:
            raise KeyboardInterrupt
        self.is_asked = True
        self.tell("Stopping after this step, with a checkpoint. Once more, and it stops at once.")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.is_training = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.is_training = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.is_asked and not ends_epoch(args, state):
            control.should_save = True
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.is_asked:
            control.should_save = True
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.is_asked:
            raise KeyboardInterrupt


@contextmanager
def asked_by_signals(ask: Callable[..., None], signals: Sequence[signal.Signals] = _SIGNALS) -> Iterator[None]:
    """Let signals call `ask` meanwhile; those that are ignored stay so. Threads other than the main one get none."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, ask) or signal.SIG_DFL
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


def interrupt(*_: Any) -> None:
    """The handler of a signal that means what Ctrl-C means."""
    raise KeyboardInterrupt

"""Stopping a run where it can go on: a first signal asks for a checkpoint, a second one ends it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from prefixprop.train.callbacks import ends_epoch


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

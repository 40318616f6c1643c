"""Progress of a run on the terminal: what it does before it trains, a bar for training, one for what is read."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerState

from prefixprop.train.callbacks import epoch_lines


class ProgressBars(TrainerCallback):
    """Bars in place of the Trainer's log lines, and a line per epoch; silent in all processes but the first."""

    def __init__(self, console: Console, metric: str) -> None:
        columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True)
        self.metric = metric
        self.stage: TaskID | None = None
        self.training: TaskID | None = None
        self.reading: TaskID | None = None

    def show(self, stage: str) -> None:
        """Say what is being done; nobody knows how long it takes, so the bar only moves."""
        self._end_stage()
        self.progress.start()
        self.stage = self.progress.add_task(stage, total=None)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._end_stage()
        if state.is_world_process_zero:
            self.progress.start()
            self.training = self.progress.add_task("training", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if self.training is not None:
            self.progress.update(self.training, completed=state.global_step)

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: Any, eval_dataloader: Any = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        self._end_stage()
        self.progress.start()
        if self.reading is None:
            self.reading = self.progress.add_task("reading", total=len(eval_dataloader))
        self.progress.advance(self.reading)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._end_reading()
        if state.is_world_process_zero:
            line = epoch_lines(state.log_history)[-1]
            self.progress.console.print(
                f"epoch {line['epoch']:>3}  step {line['step']:>6}  loss {line.get('loss', float('nan')):.4f}  "
                f"dev {self.metric} {line[f'dev_{self.metric}']:.4f}  dev ECE {line['dev_ece']:.4f}",
                highlight=False,
            )

    def on_predict(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._end_reading()

    def stop(self) -> None:
        """Give the terminal back."""
        self.progress.stop()

    def _end_stage(self) -> None:
        if self.stage is not None:
            self.progress.remove_task(self.stage)
            self.stage = None

    def _end_reading(self) -> None:
        if self.reading is not None:
            self.progress.remove_task(self.reading)
            self.reading = None

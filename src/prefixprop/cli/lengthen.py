"""`prefixprop lengthen`: make your own long encoder."""

from __future__ import annotations

import inspect
import time
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from prefixprop.cli.messages import clean_errors
from prefixprop.lengthen.settings import LengthenSettings, flag_of
from prefixprop.processes import handling_signals, is_main_process, process_count

if TYPE_CHECKING:
    from prefixprop.lengthen.trainer import Progress as TrainingProgress


def lengthen(
    model: Annotated[
        str, typer.Argument(help="A RoBERTa or BERT encoder: a model of the hub, a folder, or roberta-mini-512.")
    ],
    text: Annotated[
        list[str],
        typer.Option(help="Long documents: .jsonl, .csv, .tsv, .parquet, .txt; may be given several times."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the new encoder.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue in --output, if training began there.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the encoder in --output.")] = False,
    **settings: Any,
) -> None:
    """Make a long encoder of a RoBERTa or BERT: repeat its positions, then train it on long text.

    Example: prefixprop lengthen roberta-base --text articles.jsonl --output roberta-base-4096
    """
    messages = Console(stderr=True, quiet=not is_main_process())
    with clean_errors(resumable=True):
        wanted = LengthenSettings(model, tuple(text), **settings)
        wanted.check(process_count())

        with messages.status("loading PyTorch"):
            from prefixprop.cli.train import silence_libraries
            from prefixprop.lengthen import lengthen_and_train

            silence_libraries()
        bar = _Bar(messages, wanted)
        with bar.progress, handling_signals(bar.ask_to_stop):
            record = lengthen_and_train(wanted, output, resume, overwrite, bar.note, bar.show, lambda: bar.is_asked)
        _show_result(Console(quiet=not is_main_process()), record, output)


def _option(declared: Field) -> inspect.Parameter:
    names = [flag_of(declared.name)] + ["--lr"] * (declared.name == "learning_rate")
    option = typer.Option(*names, help=declared.metadata["help"], rich_help_panel=declared.metadata["group"])
    hint: Any = get_type_hints(LengthenSettings)[declared.name]
    return inspect.Parameter(
        declared.name, inspect.Parameter.KEYWORD_ONLY, default=declared.default, annotation=Annotated[hint, option]
    )


# The command has a flag for every setting with a default.
_OWN = [one for one in inspect.signature(lengthen, eval_str=True).parameters.values() if one.name != "settings"]
_PARAMETERS = [*_OWN, *(_option(one) for one in fields(LengthenSettings) if one.default is not MISSING)]
lengthen.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
lengthen.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}


class _Bar:
    """Progress on the terminal: the loss, the speed, and a line for every evaluation of the held-out text."""

    def __init__(self, console: Console, settings: LengthenSettings) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        self.progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self.settings = settings
        self.preparing = self.progress.add_task("reading the model and the text", total=None)
        self.task: TaskID | None = None
        self.is_asked = False
        self.lines = 0
        self.tokens, self.since = 0, time.monotonic()

    def note(self, text: str) -> None:
        self.progress.console.print(Text.assemble(("Note:", "yellow"), f" {text}"), highlight=False, soft_wrap=True)

    def ask_to_stop(self, *_: Any) -> None:
        if self.is_asked or self.task is None or process_count() > 1:
            raise KeyboardInterrupt
        self.is_asked = True
        self.note("Stopping after this step, with a checkpoint. Press again to stop at once.")

    def show(self, progress: TrainingProgress) -> None:
        if self.task is None:
            self.progress.update(self.preparing, visible=False)
            self.task = self.progress.add_task("training", total=1.0)
            self.lines = max(0, len(progress.history) - 1)
            self.tokens, self.since = progress.tokens, time.monotonic()
        for line in progress.history[self.lines :]:
            bits = "  ".join(f"{value:.3f} at {length} tokens" for length, value in line["held_out_bits"].items())
            cosine = f"  [CLS] cosine {line['cls_cosine']:.3f}" if "cls_cosine" in line else ""
            text = f"step {line['step']:>6,}  {line['tokens']:>13,} tokens  held out: {bits} (bits per token){cosine}"
            self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)
        self.lines = len(progress.history)
        if progress.counted:
            speed = (progress.tokens - self.tokens) / max(time.monotonic() - self.since, 1e-9)
            loss = progress.loss / progress.counted
            what = f"step {progress.step:,}  loss {loss:.3f}  {speed:,.0f} tokens/s"
            self.progress.update(self.task, completed=progress.share(self.settings), description=what)


def _show_result(console: Console, record: dict[str, Any], output: Path) -> None:
    before, after = record["history"][0]["held_out_bits"], record["history"][-1]["held_out_bits"]
    lines = [
        f"Held-out text, {length} tokens at once: {bits:.3f} bits per token before, {after[length]:.3f} after."
        for length, bits in before.items()
    ]
    speed = record["tokens_seen"] / max(record["seconds"], 1e-9)
    spent = f"{record['tokens_seen']:,} tokens, {record['seconds']:.0f} s ({speed:,.0f} tokens/s)"
    lines += [f"{record['steps']:,} steps, {spent}.", f"Encoder: {output}  (prefixprop train --model {output} …)"]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

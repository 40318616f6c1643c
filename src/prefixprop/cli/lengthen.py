"""`prefixprop lengthen`: a long encoder of one's own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from prefixprop.cli.messages import clean_errors
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.processes import handling_signals, is_main_process, process_count

if TYPE_CHECKING:
    from prefixprop.lengthen.trainer import Progress as TrainingProgress

_TRAINING, _MACHINE = "Training", "Machine"


def lengthen(
    model: Annotated[
        str, typer.Argument(help="A RoBERTa or BERT encoder: a model of the hub, a folder, or roberta-mini-512.")
    ],
    text: Annotated[
        list[str],
        typer.Option(
            "--text", help="Long documents: .jsonl, .csv, .tsv, .parquet, .txt; may be given several times."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the new encoder.")],
    text_column: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    max_length: Annotated[int, typer.Option(help="Longest document of the new encoder, in tokens.")] = 4096,
    attention_window: Annotated[int, typer.Option(help="Neighbours a token sees, half on either side.")] = 512,
    steps: Annotated[
        int | None, typer.Option(help="Steps of training. Default: 2000.", rich_help_panel=_TRAINING)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes of training, in place of --steps.", rich_help_panel=_TRAINING)
    ] = None,
    teach_cls: Annotated[
        bool,
        typer.Option(
            "--teach-cls",
            help="Teach [CLS] what the original says of the document's chunks, and its words: for models that embed "
            "texts.",
            rich_help_panel=_TRAINING,
        ),
    ] = False,
    freeze_embeddings: Annotated[
        bool,
        typer.Option("--freeze-embeddings", help="Leave the embeddings of words alone.", rich_help_panel=_TRAINING),
    ] = False,
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr", rich_help_panel=_TRAINING)] = 3e-5,
    warmup: Annotated[
        float, typer.Option(help="Share of training in which the rate rises.", rich_help_panel=_TRAINING)
    ] = 0.1,
    weight_decay: Annotated[float, typer.Option(rich_help_panel=_TRAINING)] = 0.01,
    batch_size: Annotated[int, typer.Option(help="Rows of full length in a step.", rich_help_panel=_TRAINING)] = 64,
    seed: Annotated[int, typer.Option(rich_help_panel=_TRAINING)] = 1,
    device_batch_size: Annotated[
        int, typer.Option(help="Rows that a device computes at once.", rich_help_panel=_MACHINE)
    ] = 8,
    precision: Annotated[
        str, typer.Option(help="auto, fp32 or bf16; auto: bf16 on GPUs that have it.", rich_help_panel=_MACHINE)
    ] = "auto",
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.", rich_help_panel=_MACHINE)
    ] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=_MACHINE)
    ] = 300.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in --output, if training began there.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove the encoder in --output first.")] = False,
) -> None:
    """Make a long encoder of a RoBERTa or BERT: repeat its positions, then train it on long text.

    Example: prefixprop lengthen roberta-base --text articles.jsonl --output roberta-base-4096
    """
    options: dict[str, Any] = {name: value for name, value in locals().items() if name in _SETTINGS}
    messages = Console(stderr=True, quiet=not is_main_process())
    with clean_errors(resumable=True):
        settings = LengthenSettings(**options | {"text": tuple(text)})
        settings.check(process_count())

        with messages.status("loading PyTorch"):
            from prefixprop.cli.train import silence_libraries
            from prefixprop.lengthen import lengthen_and_train

            silence_libraries()
        bar = _Bar(messages, settings)
        with bar.progress, handling_signals(bar.ask_to_stop):
            record = lengthen_and_train(settings, output, resume, overwrite, bar.note, bar.show, lambda: bar.is_asked)
        _show_result(Console(quiet=not is_main_process()), record, output)


_SETTINGS = tuple(LengthenSettings.__dataclass_fields__)


class _Bar:
    """Progress on the terminal: the loss, the speed, and a line for every look at the held-out text."""

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
        self.note("Stopping after this step, with a checkpoint. Once more, and it stops at once.")

    def show(self, progress: TrainingProgress) -> None:
        if self.task is None:
            self.progress.update(self.preparing, visible=False)
            self.task = self.progress.add_task("training", total=1.0)
            self.lines = max(0, len(progress.history) - 1)
            self.tokens, self.since = progress.tokens, time.monotonic()
        for line in progress.history[self.lines :]:
            self._print(line)
        self.lines = len(progress.history)
        if progress.counted:
            speed = (progress.tokens - self.tokens) / max(time.monotonic() - self.since, 1e-9)
            loss = progress.loss / progress.counted
            what = f"step {progress.step:,}  loss {loss:.3f}  {speed:,.0f} tokens/s"
            self.progress.update(self.task, completed=progress.share(self.settings), description=what)

    def _print(self, line: dict[str, Any]) -> None:
        bits = "  ".join(f"{value:.3f} at {length} tokens" for length, value in line["held_out_bits"].items())
        cosine = f"  [CLS] cosine {line['cls_cosine']:.3f}" if "cls_cosine" in line else ""
        speed = f"  {line['tokens'] / line['seconds']:,.0f} tokens/s" if line["seconds"] else ""
        text = (
            f"step {line['step']:>6,}  {line['tokens']:>13,} tokens  held out: {bits} (bits per token){cosine}{speed}"
        )
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _show_result(console: Console, record: dict[str, Any], output: Path) -> None:
    before, after = record["history"][0]["held_out_bits"], record["history"][-1]["held_out_bits"]
    table = Table(title="Held-out text, bits per token", title_justify="left")
    table.add_column("tokens at once", justify="right")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    for length, value in before.items():
        table.add_row(length, f"{value:.3f}", f"{after[length]:.3f}")
    console.print(table)
    speed = record["tokens_seen"] / max(record["seconds"], 1e-9)
    console.print(
        f"{record['steps']:,} steps, {record['tokens_seen']:,} tokens, {record['seconds']:.0f} s "
        f"({speed:,.0f} tokens/s).",
        highlight=False,
    )
    console.print(f"Encoder: {output}  (prefixprop train --model {output} …)", highlight=False, soft_wrap=True)

"""`prefixprop lengthen`: make your own long encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from prefixprop.cli.messages import RESUME, TerminalProgress, clean_errors
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.progress import handling_signals, is_main_process, process_count


def lengthen(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A RoBERTa or BERT: a hub model, a folder, or roberta-mini-512.")
    ],
    text: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="Long documents: .jsonl, .csv, .tsv, .parquet, .txt; can be repeated."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder of the new encoder.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the training in --output, if there is one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the encoder in --output.")] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Turn a RoBERTa or BERT into an encoder of long text.

    Example: prefixprop lengthen roberta-base --text articles.jsonl --output roberta-base-4096
    """
    messages = Console(stderr=True, quiet=not is_main_process())
    with clean_errors(RESUME):
        wanted = LengthenSettings(model=model, text=tuple(text), **settings)
        wanted.check(process_count())

        with messages.status("loading PyTorch"):
            from prefixprop.cli.train import silence_libraries
            from prefixprop.lengthen import lengthen_and_train
            from prefixprop.train.trainer import GracefulStop

            silence_libraries()
        with TerminalProgress(messages) as progress:
            stop = GracefulStop(progress)
            stop.is_training = process_count() == 1
            with handling_signals(stop.ask):
                record = lengthen_and_train(wanted, output, resume, overwrite, progress, lambda: stop.is_asked)
        if is_main_process():
            _show_result(record, output)


def _show_result(record: dict[str, Any], output: Path) -> None:
    before, after = record["history"][0]["held_out_bits"], record["history"][-1]["held_out_bits"]
    lines = [
        f"Held-out text, {length} tokens at once: {bits:.3f} bits per token before, {after[length]:.3f} after."
        for length, bits in before.items()
    ]
    speed = record["tokens_seen"] / max(record["seconds"], 1e-9)
    spent = f"{record['tokens_seen']:,} tokens, {record['seconds']:.0f} s ({speed:,.0f} tokens/s)"
    lines += [f"{record['steps']:,} steps, {spent}.", f"Encoder: {output}  (prefixprop train --model {output} …)"]
    typer.echo("\n".join(lines))

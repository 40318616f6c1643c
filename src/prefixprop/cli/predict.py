"""`prefixprop predict`: labels with calibrated confidence for documents of your own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console

from prefixprop.choices import DEFAULT_BATCH_TOKENS, LONG_DOCUMENTS, PREDICTION_FORMATS
from prefixprop.cli.messages import clean_errors
from prefixprop.predict.inputs import (
    STANDARD_INPUT,
    InputColumns,
    InputDocument,
    read_inputs,
    read_standard_input,
)
from prefixprop.predict.windows import ReadAhead
from prefixprop.runs.directory import RunDirectory


def predict(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Directory of a finished run, or several: each document is read once and answered by all.",
        ),
    ],
    documents: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="JSON lines (.jsonl, .jsonl.gz, .jsonl.xz), CSV, TSV, Parquet or .txt file, folder of .txt files, "
            "or - for standard input: JSON lines if its first line begins with {, otherwise one document per line.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the predictions go; standard output if left out.")
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(PREDICTION_FORMATS),
            help="By default csv for an output ending in .csv, otherwise jsonl.",
        ),
    ] = None,
    text_column: Annotated[str, typer.Option(help="Column of a table with the documents.")] = "text",
    id_column: Annotated[
        str | None,
        typer.Option(help="Column with their ids; id if there is one, otherwise documents are numbered from 1."),
    ] = None,
    long: Annotated[
        str,
        typer.Option(
            metavar="|".join(LONG_DOCUMENTS),
            help="A document over the limit is cut, or read in chunks whose probabilities are averaged.",
        ),
    ] = LONG_DOCUMENTS[0],
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens in a batch; lower it where memory is short.")
    ] = DEFAULT_BATCH_TOKENS,
    resume: Annotated[bool, typer.Option("--resume", help="Continue where the output file ends.")] = False,
) -> None:
    """Label documents with the model of a run, or of several: label, calibrated confidence and all probabilities.

    It keeps the order, writes every few seconds, and answers standard input as it arrives. With several runs, a line
    has the answers of all, by the name of the run.

    Example: prefixprop predict runs/letters new-letters.jsonl --output labels.jsonl
    """
    with clean_errors(resumable=True):
        if long not in LONG_DOCUMENTS:
            raise ValueError(f"--long {long!r} is unknown; choose one of {', '.join(LONG_DOCUMENTS)}.")
        format_name = _format_name(output_format, output)
        _check_output(output, resume)
        columns = InputColumns(text_column, id_column)
        for run in runs:
            RunDirectory(run).check_finished()
        if documents != STANDARD_INPUT:
            read_inputs(documents, columns)  # is it there?

        with Console(stderr=True).status("loading the model") as status:
            from prefixprop.cli.prediction_job import PredictionJob

            job = PredictionJob.prepared(runs, columns, long, batch_tokens, format_name, output)
            status.update("counting documents")
            total = None if documents == STANDARD_INPUT else _count(documents, columns)
        job.run(_read(documents, columns), total)


def _read(documents: str, columns: InputColumns) -> Iterator[InputDocument]:
    if documents == STANDARD_INPUT:
        # Detached: Python closes sys.stdin when it ends, and would fail while the thread still reads from it.
        stream: BinaryIO = sys.stdin.detach()  # type: ignore[union-attr]
        return ReadAhead(read_standard_input(stream, columns))
    return read_inputs(documents, columns)


def _count(documents: str, columns: InputColumns) -> int:
    """Read all documents once: it is better to find an error before hours of predicting than during them."""
    return sum(1 for _ in read_inputs(documents, columns))


def _check_output(output: Path | None, resume: bool) -> None:
    if output is None:
        if resume:
            raise ValueError("--resume continues where an output file ends; give its name with --output.")
    elif output.is_dir():
        raise ValueError(f"{output}: this is a folder; give --output the name of a file.")
    elif output.exists() and not resume:
        raise ValueError(f"{output}: the file already exists; continue it with --resume, or choose another --output.")


def _format_name(chosen: str | None, output: Path | None) -> str:
    if chosen is not None:
        if chosen not in PREDICTION_FORMATS:
            raise ValueError(f"--format {chosen!r} is unknown; choose one of {', '.join(PREDICTION_FORMATS)}.")
        return chosen
    return "csv" if output is not None and output.suffix.lower() == ".csv" else "jsonl"

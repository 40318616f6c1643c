"""`prefixprop predict`: labels with calibrated confidence for documents of your own."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefixprop.cli.messages import clean_errors
from prefixprop.prediction import PredictionOptions, PredictionSummary, TrainedModel, load_run
from prefixprop.prediction.documents import PredictedWindow, predict_documents
from prefixprop.prediction.inputs import (
    STANDARD_INPUT,
    InputColumns,
    InputDocument,
    read_inputs,
    read_standard_input,
)
from prefixprop.prediction.outputs import (
    FORMATS,
    LineFormat,
    StoredPrediction,
    drop_half_written_line,
    line_format,
    read_stored,
)
from prefixprop.prediction.predictor import LONG
from prefixprop.prediction.token_batches import DEFAULT_BATCH_TOKENS


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a finished run.")],
    documents: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="JSON lines (.jsonl, .jsonl.gz), CSV, TSV or Parquet file, folder of .txt files, or - for standard "
            "input: JSON lines if its first line begins with {, otherwise one document per line.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the predictions go; standard output if left out.")
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="|".join(FORMATS), help="csv by itself for an output ending in .csv, otherwise jsonl."
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
            metavar="|".join(LONG),
            help="A document over the limit is cut there, or read in chunks whose probabilities are averaged.",
        ),
    ] = LONG[0],
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens in a batch; lower it where memory is short.")
    ] = DEFAULT_BATCH_TOKENS,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the output file ends.")] = False,
) -> None:
    """Predict documents with the model of a run: label, calibrated confidence and all probabilities, in order.

    Documents over the limit, empty ones and repeated ids are counted and named at the end; repeated ids are predicted
    like all others.
    """
    with clean_errors(resumable=True):
        options = PredictionOptions(long, batch_tokens)
        format_name = _format_name(output_format, output)
        _check_output(output, resume)
        columns = InputColumns(text_column, id_column)
        trained = load_run(run)
        trained.check_reads_documents()
        total = None if documents == STANDARD_INPUT else _count(documents, columns)
        form = line_format(format_name, trained.label_names)
        if output is not None and output.exists():
            drop_half_written_line(output, form)
        _Job(trained, form, options, output).run(_read(documents, columns), total)


class _Job:
    """One call of the command."""

    def __init__(
        self, trained: TrainedModel, form: LineFormat, options: PredictionOptions, output: Path | None
    ) -> None:
        self.trained, self.form, self.options, self.output = trained, form, options, output
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.summary = PredictionSummary(trained.max_length)
        self.tokens_read = 0

    def run(self, documents: Iterator[InputDocument], total: int | None) -> None:
        started = time.perf_counter()
        try:
            with self._opened_output() as file, self._progress() as progress:
                bar = progress.add_task("predicting", total=total)
                for window in self._predicted(documents):
                    self._write(file, window)
                    progress.advance(bar, len(window.documents))
        except BrokenPipeError:
            # The reader has left, as `head` does. Python would complain once more when it closes standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except BaseException:
            if self.output is not None and self.summary.documents:
                self._tell(f"{self.output} has {self.summary.documents:,} predictions; --resume goes on from there.")
            raise
        self._tell_summary(time.perf_counter() - started)

    def _predicted(self, documents: Iterator[InputDocument]) -> Iterator[PredictedWindow]:
        stored: Iterator[StoredPrediction] = iter(())
        if self.output is not None:
            stored = read_stored(self.output, self.form)
        return predict_documents(self.trained, documents, self.options, stored, self.form.written_id)

    def _write(self, file: BinaryIO, window: PredictedWindow) -> None:
        pairs = list(zip(window.documents, window.predictions, strict=True))
        lines = [self.form.line(document.id, prediction) for document, prediction in pairs[window.stored :]]
        file.write(b"".join(lines))
        file.flush()
        for _, prediction in pairs[window.stored :]:
            self.tokens_read += self.trained.max_length if prediction.truncated else prediction.tokens
        for document, prediction in pairs:
            self.summary.add(document.id, document.text, prediction)
            if document.has_own_id:
                self.summary.see_id(document.id)

    @contextlib.contextmanager
    def _opened_output(self) -> Iterator[BinaryIO]:
        if self.output is None:
            sys.stdout.buffer.write(self.form.header())
            yield sys.stdout.buffer
            return
        self.output.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.output.open("ab") as file:
                if file.tell() == 0:
                    file.write(self.form.header())
                yield file
        except OSError as error:
            if error.filename is None and error.strerror:
                raise OSError(error.errno, f"cannot be written ({error.strerror})", str(self.output)) from error
            raise

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        return Progress(*columns, console=self.console, disable=not self.console.is_terminal)

    def _tell_summary(self, seconds: float) -> None:
        labels = ", ".join(f"{name} {count:,}" for name, count in self.summary.labels.most_common())
        self._tell(f"{self.summary.documents:,} documents: {labels}")
        for warning in self.summary.warnings():
            self._tell(f"Warning: {warning}")
        speed = self.tokens_read / seconds
        self._tell(f"{self.tokens_read:,} tokens in {seconds:.1f} s, {speed:,.0f} tokens/s")

    def _tell(self, text: str) -> None:
        self.console.print(text, markup=False)


def _read(documents: str, columns: InputColumns) -> Iterator[InputDocument]:
    if documents == STANDARD_INPUT:
        return read_standard_input(sys.stdin.buffer, columns)
    return read_inputs(documents, columns)


def _count(documents: str, columns: InputColumns) -> int:
    """Read all documents once: a fault is better found before hours of predicting than in them."""
    return sum(1 for _ in read_inputs(documents, columns))


def _check_output(output: Path | None, resume: bool) -> None:
    if output is None:
        if resume:
            raise ValueError("--resume goes on where an output file ends; give its name with --output.")
    elif output.is_dir():
        raise ValueError(f"{output}: this is a folder; give --output the name of a file.")
    elif output.exists() and not resume:
        raise ValueError(f"{output}: the file is there already; go on with --resume, or choose another --output.")


def _format_name(chosen: str | None, output: Path | None) -> str:
    if chosen is not None:
        if chosen not in FORMATS:
            raise ValueError(f"--format {chosen!r} is unknown; choose one of {', '.join(FORMATS)}.")
        return chosen
    return "csv" if output is not None and output.suffix.lower() == ".csv" else "jsonl"

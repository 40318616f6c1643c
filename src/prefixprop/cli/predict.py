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
from prefixprop.prediction.documents import take_stored
from prefixprop.prediction.inputs import (
    STANDARD_INPUT,
    InputColumns,
    InputDocument,
    read_inputs,
    read_standard_input,
)
from prefixprop.prediction.origin import Origin
from prefixprop.prediction.outputs import (
    FORMATS,
    LineFormat,
    drop_half_written_line,
    line_format,
    read_stored,
)
from prefixprop.prediction.predictor import LONG, Prediction, predict_together
from prefixprop.prediction.run_fingerprint import run_fingerprint
from prefixprop.prediction.token_batches import DEFAULT_BATCH_TOKENS
from prefixprop.prediction.windows import ReadAhead, windows


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

    Predictions are written every few seconds, for standard input as it arrives. What made an output file is kept
    beside it, and --resume refuses another run or other options.

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
        if output is not None:
            origin = Origin(run.resolve().name, run_fingerprint(run), long, format_name, text_column, id_column)
            _begin_or_check(output, origin, form)
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
                stored = () if self.output is None else read_stored(self.output, self.form)
                for document, prediction in take_stored(documents, stored, self.form):
                    self._count(document, prediction)
                progress.advance(bar, self.summary.documents)
                for window in windows(documents, text_of=lambda document: document.text):
                    self._predict(window, file)
                    progress.advance(bar, len(window))
        except BrokenPipeError:
            # The reader has left, as `head` does. Python would complain once more when it closes standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except BaseException:
            if self.output is not None and self.summary.documents:
                self._tell(f"{self.output} has {self.summary.documents:,} predictions; --resume goes on from there.")
            raise
        self._tell_summary(time.perf_counter() - started)

    def _predict(self, window: list[InputDocument], file: BinaryIO) -> None:
        predictions = predict_together(self.trained, [document.text for document in window], self.options)
        pairs = list(zip(window, predictions, strict=True))
        file.write(b"".join(self.form.line(document.id, prediction) for document, prediction in pairs))
        file.flush()
        for document, prediction in pairs:
            self.tokens_read += self.trained.max_length if prediction.truncated else prediction.tokens
            self._count(document, prediction)

    def _count(self, document: InputDocument, prediction: Prediction) -> None:
        self.summary.add(document.id, document.text, prediction)
        if document.has_own_id:
            self.summary.see_id(document.id)

    @contextlib.contextmanager
    def _opened_output(self) -> Iterator[BinaryIO]:
        if self.output is None:
            sys.stdout.buffer.write(self.form.header())
            yield sys.stdout.buffer
            return
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
        # Detached: Python closes sys.stdin when it ends, and would fail while the thread still reads from it.
        stream: BinaryIO = sys.stdin.detach()  # type: ignore[union-attr]
        return ReadAhead(read_standard_input(stream, columns))
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


def _begin_or_check(output: Path, origin: Origin, form: LineFormat) -> None:
    if output.exists() and output.stat().st_size > 0:
        origin.check(output)
        drop_half_written_line(output, form)
    else:
        origin.write(output)


def _format_name(chosen: str | None, output: Path | None) -> str:
    if chosen is not None:
        if chosen not in FORMATS:
            raise ValueError(f"--format {chosen!r} is unknown; choose one of {', '.join(FORMATS)}.")
        return chosen
    return "csv" if output is not None and output.suffix.lower() == ".csv" else "jsonl"

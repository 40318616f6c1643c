"""The work of `prefixprop predict`: from a stream of documents to a growing file."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefixprop.prediction import PredictionOptions, PredictionSummary, TrainedModel, load_run
from prefixprop.prediction.inputs import InputColumns, InputDocument
from prefixprop.prediction.outputs import (
    LineFormat,
    Origin,
    drop_half_written_line,
    line_format,
    read_stored,
    take_stored,
)
from prefixprop.prediction.predictor import Prediction, predict_together
from prefixprop.prediction.windows import windows
from prefixprop.runs.directory import RunDirectory


class PredictionJob:
    """One call of the command."""

    def __init__(
        self, trained: TrainedModel, form: LineFormat, options: PredictionOptions, output: Path | None
    ) -> None:
        self.trained, self.form, self.options, self.output = trained, form, options, output
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.summary = PredictionSummary(trained.max_length)
        self.tokens_read = 0

    @classmethod
    def prepared(
        cls,
        run: Path,
        columns: InputColumns,
        long: str,
        batch_tokens: int,
        format_name: str,
        output: Path | None,
    ) -> PredictionJob:
        """Loads the model; an existing output must have been started by the same run and options."""
        trained = load_run(run)
        trained.check_reads_documents()
        form = line_format(format_name, trained.label_names)
        if output is not None:
            origin = Origin(
                run.resolve().name, RunDirectory(run).fingerprint(), long, format_name, columns.text, columns.id
            )
            _begin_or_check(output, origin, form)
        return cls(trained, form, PredictionOptions(long, batch_tokens), output)

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
            # The reader has gone, as `head` does. Python would complain again when it closes standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except BaseException:
            if self.output is not None and self.summary.documents:
                self._print(
                    f"{self.output} has {self.summary.documents:,} predictions; --resume continues from there."
                )
            raise
        self._print_summary(time.perf_counter() - started)

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

    def _print_summary(self, seconds: float) -> None:
        labels = ", ".join(f"{name} {count:,}" for name, count in self.summary.labels.most_common())
        self._print(f"{self.summary.documents:,} documents: {labels}")
        for warning in self.summary.warnings():
            self._print(f"Warning: {warning}")
        speed = self.tokens_read / seconds
        self._print(f"{self.tokens_read:,} tokens in {seconds:.1f} s, {speed:,.0f} tokens/s")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False)


def _begin_or_check(output: Path, origin: Origin, form: LineFormat) -> None:
    if output.exists() and output.stat().st_size > 0:
        origin.check(output)
        drop_half_written_line(output, form)
    else:
        origin.write(output)

"""The work of `prefixprop predict`: from a stream of documents to a growing file."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefixprop.predict import PredictionOptions, PredictionSummary, TrainedModel
from prefixprop.predict.inputs import InputColumns, InputDocument
from prefixprop.predict.outputs import (
    LineFormat,
    Origin,
    drop_half_written_line,
    line_format,
    read_stored,
    take_stored,
)
from prefixprop.predict.predictor import Prediction, predict_with_each
from prefixprop.predict.trained_model import load_runs
from prefixprop.predict.windows import windows
from prefixprop.runs.directory import RunDirectory


class PredictionJob:
    """One call of the command."""

    def __init__(
        self, runs: dict[str, TrainedModel], form: LineFormat, options: PredictionOptions, output: Path | None
    ) -> None:
        self.runs, self.form, self.options, self.output = runs, form, options, output
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.summaries = {name: PredictionSummary(run.max_length) for name, run in runs.items()}
        self.documents = 0
        self.tokens_read = 0

    @classmethod
    def prepared(
        cls,
        folders: Sequence[Path],
        columns: InputColumns,
        long: str,
        batch_tokens: int,
        format_name: str,
        output: Path | None,
    ) -> PredictionJob:
        """Loads the models; an existing output must have been started by the same runs and options."""
        runs = dict(zip(names_of(folders), load_runs(folders), strict=True))
        for run in runs.values():
            run.check_reads_documents()
        form = line_format(format_name, {name: run.label_names for name, run in runs.items()})
        if output is not None:
            fingerprint = " ".join(RunDirectory(folder).fingerprint() for folder in folders)
            origin = Origin(", ".join(runs), fingerprint, long, format_name, columns.text, columns.id)
            _begin_or_check(output, origin, form)
        return cls(runs, form, PredictionOptions(long, batch_tokens), output)

    def run(self, documents: Iterator[InputDocument], total: int | None) -> None:
        started = time.perf_counter()
        try:
            with self._opened_output() as file, self._progress() as progress:
                bar = progress.add_task("predicting", total=total)
                stored = () if self.output is None else read_stored(self.output, self.form)
                for document, predictions in take_stored(documents, stored, self.form):
                    self._count(document, predictions)
                progress.advance(bar, self.documents)
                for window in windows(documents, text_of=lambda document: document.text):
                    self._predict(window, file)
                    progress.advance(bar, len(window))
        except BrokenPipeError:
            # The reader has gone, as `head` does. Python would complain again when it closes standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except BaseException:
            if self.output is not None and self.documents:
                self._print(f"{self.output} has {self.documents:,} predictions; --resume continues from there.")
            raise
        self._print_summary(time.perf_counter() - started)

    def _predict(self, window: list[InputDocument], file: BinaryIO) -> None:
        runs = list(self.runs.values())
        predictions = predict_with_each(runs, [document.text for document in window], self.options)
        pairs = list(zip(window, predictions, strict=True))
        file.write(b"".join(self.form.line(document.id, answers) for document, answers in pairs))
        file.flush()
        for document, answers in pairs:
            self.tokens_read += max(
                run.max_length if answer.truncated else answer.tokens
                for run, answer in zip(runs, answers, strict=True)
            )
            self._count(document, answers)

    def _count(self, document: InputDocument, predictions: Sequence[Prediction]) -> None:
        self.documents += 1
        for summary, prediction in zip(self.summaries.values(), predictions, strict=True):
            summary.add(document.id, document.text, prediction)
            if document.has_own_id:
                summary.see_id(document.id)

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
        for run, summary in self.summaries.items():
            labels = ", ".join(f"{name} {count:,}" for name, count in summary.labels.most_common())
            self._print(f"{f'{run}: ' if len(self.runs) > 1 else ''}{self.documents:,} documents: {labels}")
        for warning in dict.fromkeys(text for summary in self.summaries.values() for text in summary.warnings()):
            self._print(f"Warning: {warning}")
        speed = self.tokens_read / seconds
        self._print(f"{self.tokens_read:,} tokens in {seconds:.1f} s, {speed:,.0f} tokens/s")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False)


def names_of(folders: Sequence[Path]) -> list[str]:
    """What the output calls these runs: the names of their folders, or the paths if two have the same name."""
    paths = [folder.resolve() for folder in folders]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice}: this run is given twice; give each run once.")
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [folder.as_posix() for folder in folders]


def _begin_or_check(output: Path, origin: Origin, form: LineFormat) -> None:
    if output.exists() and output.stat().st_size > 0:
        origin.check(output)
        drop_half_written_line(output, form)
    else:
        origin.write(output)

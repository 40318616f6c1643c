"""`prefixprop predict`: labels with calibrated confidence for your documents."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer
from rich.console import Console

from prefixprop.cli.messages import REPEAT, RESUME, TerminalProgress, clean_errors, printable, refuse
from prefixprop.data.files import Columns
from prefixprop.predict.inputs import STANDARD_INPUT, InputDocument, ReadAhead, read_inputs, windows
from prefixprop.predict.outputs import CommaSeparated, JsonLines, Origin, ResumableOutput, format_of, locked, speed
from prefixprop.predict.ray_engine import Work, predict_parts, tables_of
from prefixprop.progress import Progress, collect_only_new_objects
from prefixprop.runs.directory import RunDirectory

if TYPE_CHECKING:
    from prefixprop.predict import Prediction, PredictionOptions, TrainedModel
    from prefixprop.predict.trained_model import EncodedForEach


_LONG_NUMBER = re.compile(r"(?<=[ ,])[01]\.\d{5,}(?:e-\d+)?(?=[,}]|$)|(?<=[ ,])\d(?:\.\d+)?e-\d+(?=[,}]|$)")
# Options that other commands have too.
TextOption = Annotated[str, typer.Option(metavar="NAME", help="Column of a table with the documents.")]
IdOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column with the ids. Default: id if there is one, otherwise numbers from 1."),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="ray: the cluster, or auto. Default: start one on this machine."),
]
LongOption = Annotated[
    Literal["truncate", "chunk-average"],
    typer.Option(help="Cut a document over the limit, or read it in chunks whose probabilities are averaged."),
]
BatchTokensOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Tokens in a batch, by default 65,536 on a GPU and 4,096 elsewhere."),
]


def predict(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Directory of a finished run, or several: each document is read once and predicted by all.",
        ),
    ],
    documents: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="JSON lines (.jsonl, .jsonl.gz, .jsonl.xz), CSV, TSV, Parquet or .txt file, folder of .txt files, "
            "or - for standard input: JSON lines if its first line begins with {, otherwise one document per line. "
            "With --engine ray, a table or a folder of JSON lines or Parquet files.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where predictions go, .jsonl or .csv; with ray a folder. Default: standard output."
        ),
    ] = None,
    output_format: Annotated[
        Literal["jsonl", "csv"] | None,
        typer.Option(
            "--format", help="Output format. Default: by the ending of --output; jsonl for standard output."
        ),
    ] = None,
    text_column: TextOption = "text",
    id_column: IdOption = None,
    long: LongOption = "truncate",
    batch_tokens: BatchTokensOption = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue where the output (.jsonl) ends; the input may have grown since."),
    ] = False,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Predict here, or with workers on the nodes of a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="ray: number of workers. Default: one per GPU, or one per four cores."),
    ] = None,
    part_rows: Annotated[int, typer.Option(metavar="N", min=1, help="ray: documents per file.")] = 1_000,
    ray_address: RayAddressOption = None,
) -> None:
    """Label documents with one run or several.

    A prediction has the label, a calibrated confidence and all probabilities. Predictions keep the order of the input
    and are written every few seconds. With several runs, each line has the predictions of all, by run name.

    Example: prefixprop predict runs/letters new-letters.jsonl --output labels.jsonl
    """
    is_csv = "csv" in (output_format, "" if output is None else output.suffix.lower()[1:])
    after_a_stop = REPEAT if engine == "ray" else "" if output is None or is_csv else RESUME
    with clean_errors(after_a_stop), contextlib.ExitStack() as stack:
        names = names_of(runs)
        columns = Columns(text=text_column, id=id_column)
        fingerprint = " ".join(RunDirectory(run).fingerprint() for run in runs)
        origin = Origin(", ".join(names), fingerprint, long, text_column, id_column)
        if engine == "ray":
            refuse(context, ("output_format",), "--engine ray writes Parquet")
            refuse(context, ("resume",), "--engine ray always continues where it stopped")
            modules = context.find_root().params.get("modules") or []
            by_name = dict(zip(names, (run.resolve() for run in runs), strict=True))
            work = Work(Path.cwd(), by_name, columns, long, batch_tokens, modules)
            origin = replace(origin, part_rows=part_rows)
            if output is None:
                raise ValueError("--engine ray writes a folder of Parquet files; give its name with --output.")
            files = tables_of(Path(documents), output)
            with locked(output), TerminalProgress(Console(stderr=True)) as progress:
                predict_parts(files, output, work, origin, workers, ray_address, progress)
            return
        refuse(context, ("workers", "part_rows", "ray_address"), "it is for --engine ray")
        format_name = format_of(output, output_format)
        _check_output(output, resume, format_name)
        if documents != STANDARD_INPUT:
            read_inputs(documents, columns)  # is it there?
        if output is not None:
            stack.enter_context(locked(output))
            _check_output(output, resume, format_name)  # which another process may have written meanwhile

        with Console(stderr=True).status("loading the model") as status:
            from prefixprop.predict.loading import load_by_name
            from prefixprop.predict.trained_model import PredictionOptions

            models = load_by_name(dict(zip(names, runs, strict=True)))
            job = Job(models, format_name, PredictionOptions(long, batch_tokens), output, origin)
            total = None
            if documents != STANDARD_INPUT:
                # It is better to find an error before hours of predicting than during them.
                status.update("counting documents")
                total = sum(1 for _ in read_inputs(documents, columns))
        if documents == STANDARD_INPUT:
            arriving = ReadAhead(read_inputs(documents, columns), 256)
            job.run(arriving, is_waiting=arriving.is_waiting)
        else:
            job.run(read_inputs(documents, columns), total)


class Job:
    """From a stream of documents to predictions, in a file or on standard output, and a summary."""

    def __init__(
        self,
        runs: dict[str, TrainedModel],
        format_name: str,
        options: PredictionOptions,
        output: Path | None,
        origin: Origin,
    ) -> None:
        from prefixprop.predict import PredictionSummary

        self.runs, self.options, self.output = runs, options, output
        label_names = {name: run.label_names for name, run in runs.items()}
        several = [name for name, run in runs.items() if run.several_labels]
        self.form: JsonLines | CommaSeparated = CommaSeparated(label_names, several)
        self.resumable: ResumableOutput | None = None
        if format_name == "jsonl":
            self.form = JsonLines(label_names)
            self.resumable = None if output is None else ResumableOutput(output, self.form, origin)
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.summaries = {name: PredictionSummary(run) for name, run in runs.items()}
        self.documents = 0
        self.answered = self.tokens_read = 0  # by this call

    @collect_only_new_objects()
    def run(
        self,
        documents: Iterator[InputDocument],
        total: int | None = None,
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        started = time.perf_counter()
        try:
            if self.resumable is not None:
                for document, predictions in self.resumable.answered(documents):
                    self._count(document, predictions)
                documents = itertools.chain(self.resumable.unanswered, documents)
            with self._opened_output() as file, self._progress() as progress, contextlib.ExitStack() as stack:
                began = time.perf_counter()
                encoded = ReadAhead(self._encoded(windows(documents, lambda document: document.text, is_waiting)), 1)
                stack.callback(encoded.close)
                # While the models compute a window, one thread tokenizes the next, and another writes the last.
                writer, written = stack.enter_context(ThreadPoolExecutor(1)), Future[None]()
                written.set_result(None)
                for window, answers in self._answered(encoded, ahead=total is not None):
                    written.result()
                    written = writer.submit(self._write, window, answers, file)
                    how_fast = speed(self.answered, self.tokens_read, time.perf_counter() - began)
                    progress.advance("predicting", self.documents, total, how_fast)
                written.result()
        except BrokenPipeError:
            # The reader has gone, as `head` does. Python would complain again when it closes standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        self._print_summary(time.perf_counter() - started)

    def _encoded(self, found: Iterator[list[InputDocument]]) -> Iterator[tuple[list[InputDocument], EncodedForEach]]:
        """Windows and their tokens.

        Processes would tokenize no faster than this thread: the tokenizer's Rust code uses all cores, with 1.2
        million tokens/s on each (docs/prediction.md).
        """
        from prefixprop.predict.trained_model import encode_for_each

        for window in found:
            texts = [document.text for document in window]
            yield window, encode_for_each(list(self.runs.values()), texts, self.options)

    def _answered(
        self, encoded: Iterable[tuple[list[InputDocument], EncodedForEach]], ahead: bool
    ) -> Iterator[tuple[list[InputDocument], list[tuple[Prediction, ...]]]]:
        """Windows and their predictions.

        With `ahead` a GPU gets a window before it has finished the last one, so that it never waits for Python.
        """
        import torch

        from prefixprop.predict.trained_model import start_predicting

        most = 1 if ahead and torch.accelerator.is_available() else 0
        started: deque[tuple[list[InputDocument], Callable[[], list[tuple[Prediction, ...]]]]] = deque()
        for window, tokens in encoded:
            started.append((window, start_predicting(list(self.runs.values()), tokens, self.options)))
            if len(started) > most:
                first, wait = started.popleft()
                yield first, wait()
        for window, wait in started:
            yield window, wait()

    def _write(self, window: list[InputDocument], answers: list[tuple[Prediction, ...]], file: BinaryIO) -> None:
        lines = [self.form.line(document.id, found) for document, found in zip(window, answers, strict=True)]
        _write(file, lines)
        if self.resumable is not None:
            self.resumable.record(window)
        for document, found in zip(window, answers, strict=True):
            self.answered += 1
            self.tokens_read += max(prediction.tokens_read for prediction in found)
            self._count(document, found)

    def _count(self, document: InputDocument, predictions: Sequence[Prediction]) -> None:
        self.documents += 1
        for summary, prediction in zip(self.summaries.values(), predictions, strict=True):
            summary.add(document.id, document.text, prediction)

    @contextlib.contextmanager
    def _opened_output(self) -> Iterator[BinaryIO]:
        if self.output is None:
            _write(sys.stdout.buffer, [self.form.header])
            yield sys.stdout.buffer
            return
        try:
            with self.output.open("ab") as file:
                _write(file, [self.form.header])
                yield file
        except BaseException as error:
            if self.documents:
                end = "--resume continues from there" if self.resumable else "a CSV file cannot be continued"
                self._print(f"{self.output} has {self.documents:,} predictions; {end}.")
            if isinstance(error, OSError) and error.filename is None and error.strerror:
                raise OSError(error.errno, f"cannot be written ({error.strerror})", str(self.output)) from error
            raise

    def _progress(self) -> contextlib.AbstractContextManager[Progress]:
        # Predictions on the same terminal would share a line with the bar.
        shares = self.output is None and sys.stdout.isatty()
        return contextlib.nullcontext(Progress()) if shares else TerminalProgress(self.console)

    def _print_summary(self, seconds: float) -> None:
        for run, summary in self.summaries.items():
            labels = ", ".join(f"{name} {count:,}" for name, count in summary.labels.most_common())
            name = f"{run}: " if len(self.runs) > 1 else ""
            self._print(f"{name}{self.documents:,} documents: {labels}")
            if summary.decisions:
                self._print(name + ", ".join(f"{what} {count:,}" for what, count in summary.decisions.most_common()))
        for warning in dict.fromkeys(text for summary in self.summaries.values() for text in summary.warnings()):
            self._print(f"Warning: {warning}")
        how_fast = speed(self.answered, self.tokens_read, seconds)
        self._print(f"{self.tokens_read:,} tokens in {seconds:.1f} s, {how_fast}")

    def _print(self, text: str) -> None:
        self.console.print(printable(text), markup=False)


def _write(file: BinaryIO, lines: Sequence[bytes]) -> None:
    if file.isatty():  # a person reads: four digits are enough
        texts = [printable(line.decode().removesuffix("\n")) for line in lines if line]
        lines = [_LONG_NUMBER.sub(lambda found: f"{float(found[0]):.4f}", text).encode() + b"\n" for text in texts]
    file.write(b"".join(lines))
    file.flush()


def _check_output(output: Path | None, resume: bool, format_name: str) -> None:
    if resume and output is None:
        raise ValueError("--resume continues where an output file ends; give its name with --output.")
    if resume and format_name == "csv":
        raise ValueError("--resume continues JSON lines only: CSV cannot be continued. Choose an --output in .jsonl.")
    if output is not None and output.is_dir():
        raise ValueError(f"{output}: this is a folder; give --output the name of a file.")
    if output is not None and output.exists() and not resume:
        continue_it = "continue it with --resume, or " if format_name == "jsonl" else ""
        raise ValueError(f"{output}: the file already exists; {continue_it}choose another --output.")


def names_of(folders: Sequence[Path]) -> list[str]:
    """What answers call these finished runs: their folders, with more of their paths where two have the same name."""
    for folder in folders:
        RunDirectory(folder).check_finished()
    paths = [folder.resolve() for folder in folders]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice}: this run is given twice; give each run once.")
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(common).as_posix() for path in paths]

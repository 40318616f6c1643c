"""The models behind the service: in this process, or in a separate one.

In a separate process the encoder has Python's lock to itself, so parsing requests does not delay the launches of its
kernels. Callers use lanes, which work at the same time: while the batch of one is computed, those of others are
tokenized or written. The first lane is for reasons. They are computed in passes of a quarter of a batch, and passes
take turns (see `predict.token_batches`), so a batch waits for one such pass at most.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from prefixprop.predict import Passage, Prediction, PredictionOptions, TrainedModel
from prefixprop.predict.explain import explain
from prefixprop.predict.loading import load_by_name
from prefixprop.predict.reading import ReadingEncoder
from prefixprop.predict.trained_model import predict_with_each
from prefixprop.progress import collect_only_new_objects

LANES, REASONS_LANE = 4, 0
MOST_PASSAGES = 24  # of a document whose label is explained, about: without each of them it is answered again
_PASSES_OF_REASONS = 4  # for a batch
_SECONDS_TO_END = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunDescription:
    name: str
    method: str
    labels: tuple[str, ...]
    several_labels: bool
    max_length: Annotated[int, Field(description="The longest text that is read whole, in tokens.")]
    target_precision: Annotated[float | None, Field(description="The share of accepted answers to be right.")]
    accept_from: Annotated[float | None, Field(description="The lowest confidence that is accepted.")]


@dataclass(frozen=True)
class ServedRun:
    """A run as the queue knows it: runs of one `model` number share a model and read texts alike."""

    description: RunDescription
    model: int
    reads: bool  # with readers, of which any number share a pass


@dataclass(frozen=True)
class Reason:
    """A label that a document gets, and all passages of what was read, with how much each speaks for it."""

    label: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class Job:
    """Texts, and the names of the runs that are asked about each of them."""

    texts: Sequence[str]
    runs: Sequence[Sequence[str]]
    long: str
    wants_reasons: bool = False


Answer = Mapping[str, Prediction | tuple[Reason, ...]]  # by the name of the run


class EncoderStoppedError(RuntimeError):
    """The encoder's process has ended."""


class Encoder:
    """Runs by name, in this process."""

    is_alive = True

    def __init__(self, runs: Mapping[str, TrainedModel], batch_tokens: int | None = None) -> None:
        self.models = runs
        device = next(iter(runs.values())).device
        self.batch_tokens = PredictionOptions(batch_tokens=batch_tokens).tokens_of_a_batch(device)
        # On a CPU, a batch that is tokenized takes time from the one that is computed.
        self.batches_at_once = LANES - 1 if device.type == "cuda" else 2
        keys: list[Hashable] = []
        self.runs: dict[str, ServedRun] = {}
        for name, run in runs.items():
            key = (name if run.model is None else id(run.model), run.tokens_key)
            keys += [] if key in keys else [key]
            reads = isinstance(run.model, ReadingEncoder)
            self.runs[name] = ServedRun(_described(name, run), keys.index(key), reads)

    def compute(self, lane: int, job: Job) -> list[Answer | None]:
        """The answer for each text; None for a text that fails, alone."""
        try:
            return self._explained(job) if job.wants_reasons else self._predicted(job)
        except Exception as error:
            if len(job.texts) > 1:
                half = len(job.texts) // 2
                halves = slice(half), slice(half, None)
                parts = [replace(job, texts=job.texts[own], runs=job.runs[own]) for own in halves]
                return [answer for part in parts for answer in self.compute(lane, part)]
            # Neither its message nor a traceback, which may have a piece of a document, or a path.
            place = traceback.extract_tb(error.__traceback__)[-1]
            file = Path(place.filename).name
            _log.error("A document failed: %s in %s, line %s.", type(error).__name__, file, place.lineno)
            return [None]

    def close(self) -> None:
        """Nothing to end."""

    def _predicted(self, job: Job) -> list[Answer | None]:
        names = list(dict.fromkeys(name for own in job.runs for name in own))
        options = PredictionOptions(job.long, self.batch_tokens)
        found = predict_with_each([self.models[name] for name in names], list(job.texts), options)
        by_name = (dict(zip(names, predictions, strict=True)) for predictions in found)
        return [{name: each[name] for name in own} for own, each in zip(job.runs, by_name, strict=True)]

    def _explained(self, job: Job) -> list[Answer | None]:
        options = PredictionOptions(job.long, max(1, self.batch_tokens // _PASSES_OF_REASONS))
        return [
            {
                name: tuple(
                    Reason(each.label, each.passages)
                    for each in explain(self.models[name], [text], options, most_passages=MOST_PASSAGES)[0]
                )
                for name in own
            }
            for text, own in zip(job.texts, job.runs, strict=True)
        ]


class EncoderProcess:
    """Runs by name, from their folders, in a process that ends when this one closes it or dies."""

    def __init__(self, folders: Mapping[str, Path], batch_tokens: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections, theirs = zip(*(context.Pipe() for _ in range(LANES)), strict=True)
        self._process = context.Process(target=_work, args=(theirs, dict(folders), batch_tokens), name="encoder")
        self._process.start()
        for connection in theirs:
            connection.close()
        try:
            self.runs: dict[str, ServedRun]
            self.batch_tokens: int
            self.batches_at_once: int
            self.runs, self.batch_tokens, self.batches_at_once = self._received(0)
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def compute(self, lane: int, job: Job) -> list[Answer | None]:
        """As `Encoder.compute`; every lane is one thread's."""
        try:
            self._connections[lane].send(job)
        except OSError:
            raise EncoderStoppedError from None
        answers: list[Answer | None] = self._received(lane)
        return answers

    def close(self) -> None:
        """End the process; what it is computing may take a few seconds more."""
        for connection in self._connections:
            connection.close()
        self._process.join(_SECONDS_TO_END)
        self._process.kill()
        self._process.join()

    def _received(self, lane: int) -> Any:
        try:
            received = self._connections[lane].recv()
        except (EOFError, OSError):
            raise EncoderStoppedError("The encoder's process has ended.") from None
        if isinstance(received, Exception):
            raise received
        return received


def _work(connections: Sequence[Connection], folders: Mapping[str, Path], batch_tokens: int | None) -> None:
    """The process of an encoder: load the runs, then answer every lane until its other end is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the service finishes what is under way
        signal.signal(number, signal.SIG_IGN)
    try:
        models = load_by_name(folders)
        predict_with_each(list(models.values()), [""], PredictionOptions())  # the first call takes seconds
    except (OSError, ValueError) as error:
        connections[0].send(ValueError(str(error)))
        return
    encoder = Encoder(models, batch_tokens)
    try:
        connections[0].send((encoder.runs, encoder.batch_tokens, encoder.batches_at_once))
    except OSError:
        return  # the service has ended meanwhile
    lanes = [
        threading.Thread(target=_answer, args=(encoder, lane, connection))
        for lane, connection in enumerate(connections)
    ]
    with collect_only_new_objects():
        for thread in lanes:
            thread.start()
        for thread in lanes:
            thread.join()


def _answer(encoder: Encoder, lane: int, connection: Connection) -> None:
    try:
        while True:
            connection.send(encoder.compute(lane, connection.recv()))
    except (EOFError, OSError):
        pass  # the service has ended


def _described(name: str, run: TrainedModel) -> RunDescription:
    return RunDescription(
        name=name,
        method=run.settings.method_row.name,
        labels=run.label_names,
        several_labels=run.several_labels,
        max_length=run.max_length,
        target_precision=None if run.trust is None else run.trust.target,
        accept_from=None if run.trust is None else run.trust.threshold,
    )

"""The documents of all clients, computed together: a queue in front of the encoder, and the thread that empties it.

Documents that can share a pass are of one kind: they are read alike, are of similar length (within a factor of √2),
and ask runs of one model. Readers of any runs on an encoder share a pass, so a batch has the readers that any of its
documents asks for. Other runs share a pass only if the documents ask for the same ones.

The thread takes the kind whose first document came first. It waits a moment for more of that kind, and takes as many
as fill a batch. It runs beside the event loop in the same process: PyTorch computes without Python's lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefixprop.choices import DEFAULT_BATCH_TOKENS
from prefixprop.predict.reading import ReadingEncoder
from prefixprop.predict.trained_model import Prediction, PredictionOptions, TrainedModel, predict_with_each

CHARACTERS_PER_TOKEN = 4  # about: what a batch holds is counted exactly where it is padded
_log = logging.getLogger(__name__)

Kind = tuple[Hashable, ...]
Answer = dict[str, Prediction]  # by the name of the run


@dataclass(eq=False)
class QueuedDocument:
    """A document and the runs, of one model, that are asked about it."""

    kind: Kind
    text: str
    runs: tuple[str, ...]
    long: str
    tokens: int
    since: float
    answer: asyncio.Future[Answer]


class BatchingQueue:
    """Answers with `runs`, by name; `wait_seconds` is how long a document waits for others to share its batch.

    `observe` is told the documents, tokens and seconds of every batch.
    """

    def __init__(
        self,
        runs: Mapping[str, TrainedModel],
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        wait_seconds: float = 0.005,
        observe: Callable[[int, int, float], None] = lambda documents, tokens, seconds: None,
    ) -> None:
        self.runs, self.batch_tokens, self.wait_seconds, self.observe = runs, batch_tokens, wait_seconds, observe
        self._waiting: dict[Kind, deque[QueuedDocument]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="encoder", daemon=True)
        self._thread.start()

    @property
    def is_working(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def add(self, text: str, runs: Sequence[str], long: str) -> list[QueuedDocument]:
        """Queue a text for each model that these runs have; called in the event loop that awaits the answers."""
        by_model: dict[Hashable, list[str]] = {}
        for name in runs:
            run = self.runs[name]
            by_model.setdefault((id(run.model) if run.model is not None else name, run.reading), []).append(name)
        added = []
        for model, names in by_model.items():
            run = self.runs[names[0]]
            tokens = max(1, len(text) // CHARACTERS_PER_TOKEN)
            length = min(tokens, run.max_length)
            asked = () if isinstance(run.model, ReadingEncoder) else tuple(names)
            kind = (model, asked, long, round(2 * math.log2(length)))
            answer = asyncio.get_running_loop().create_future()
            total = length if long == "truncate" else tokens
            added.append(QueuedDocument(kind, text, tuple(names), long, total, time.monotonic(), answer))
        with self._changed:
            for document in added:
                self._waiting.setdefault(document.kind, deque()).append(document)
            self._changed.notify()
        return added

    def withdraw(self, documents: Sequence[QueuedDocument]) -> None:
        """Take out documents whose answers nobody awaits any more; those that are being computed are left."""
        with self._changed:
            for document in documents:
                document.answer.cancel()
                line = self._waiting.get(document.kind, deque())
                if document in line:
                    line.remove(document)
                    if not line:
                        del self._waiting[document.kind]

    def close(self) -> None:
        """End the thread after what is waiting is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            started = time.perf_counter()
            outcome = self._computed(batch)
            self.observe(len(batch), sum(document.tokens for document in batch), time.perf_counter() - started)
            batch[0].answer.get_loop().call_soon_threadsafe(_deliver, batch, outcome)

    def _next_batch(self) -> list[QueuedDocument]:
        """The documents to compute next; none: the queue is closed and empty."""
        with self._changed:
            while self._waiting or not self._closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                line = min(self._waiting.values(), key=lambda line: line[0].since)
                missing = line[0].since + self.wait_seconds - time.monotonic()
                if missing <= 0 or sum(document.tokens for document in line) >= self.batch_tokens or self._closed:
                    return self._take(line)
                self._changed.wait(missing)
        return []

    def _take(self, line: deque[QueuedDocument]) -> list[QueuedDocument]:
        batch = [line.popleft()]
        room = self.batch_tokens - batch[0].tokens
        while line and line[0].tokens <= room:
            batch.append(line.popleft())
            room -= batch[-1].tokens
        if not line:
            del self._waiting[batch[0].kind]
        return batch

    def _computed(self, batch: Sequence[QueuedDocument]) -> list[Answer] | Exception:
        names = list(dict.fromkeys(name for document in batch for name in document.runs))
        options = PredictionOptions(batch[0].long, self.batch_tokens)
        try:
            found = predict_with_each([self.runs[name] for name in names], [each.text for each in batch], options)
        except Exception as error:  # the clients of this batch are told, and the thread goes on
            # Neither its message nor a traceback, which may have a piece of a document, or a path.
            place = traceback.extract_tb(error.__traceback__)[-1]
            _log.error(
                "A batch failed: %s in %s, line %s.", type(error).__name__, Path(place.filename).name, place.lineno
            )
            return error
        by_name = (dict(zip(names, predictions, strict=True)) for predictions in found)
        return [{name: own[name] for name in each.runs} for each, own in zip(batch, by_name, strict=True)]


def _deliver(batch: Sequence[QueuedDocument], outcome: list[Answer] | Exception) -> None:
    for number, document in enumerate(batch):
        if document.answer.done():  # withdrawn meanwhile
            continue
        if isinstance(outcome, Exception):
            document.answer.set_exception(outcome)
        else:
            document.answer.set_result(outcome[number])

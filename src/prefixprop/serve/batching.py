"""The documents of all clients, computed together: a queue in front of the encoder, and the threads that empty it.

Documents that can share a pass are of one kind: they are read in the same way, are of similar length (within a factor
of √2), and are for runs of one model. Readers of any runs on an encoder share a pass, so a batch has the readers that
any of its documents asks for. Other runs share a pass only if the documents ask for the same ones.

A thread takes the kind whose first document came first. It waits a moment for more of that kind, and takes as many as
fill a batch. Meanwhile another takes a full batch, or one as large as the first, so that it is tokenized when the
encoder is free, and the encoder works while answers are written and clients send more. Beside a GPU there are three
others, which take batches a third as large as what is under way. Reasons are a kind of their own, which one more
thread takes one document at a time.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from prefixprop.serve.encoder import REASONS_LANE, Answer, Encoder, EncoderProcess, EncoderStoppedError, Job

CHARACTERS_PER_TOKEN = 4  # about: what a batch holds is counted exactly where it is padded

Kind = tuple[Hashable, ...]
_REASONS: Kind = ("reasons",)


@dataclass(eq=False)
class QueuedDocument:
    """A document and the runs, of one model, that are asked about it; its answer is None if it fails."""

    kind: Kind
    text: str
    runs: tuple[str, ...]
    long: str
    tokens: int
    since: float
    answer: asyncio.Future[Answer | None]


class BatchingQueue:
    """Answers with an encoder's runs; `wait_seconds` is how long a document waits for others to share its batch.

    `observe` is told the documents, tokens and seconds of every batch.
    """

    def __init__(
        self,
        encoder: Encoder | EncoderProcess,
        wait_seconds: float,
        observe: Callable[[int, int, float], None],
    ) -> None:
        self.encoder, self.observe = encoder, observe
        self.batch_tokens, self.wait_seconds = encoder.batch_tokens, wait_seconds
        self._waiting: dict[Kind, deque[QueuedDocument]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._tokens_under_way = 0
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"lane {lane}", daemon=True)
            for lane in (REASONS_LANE, *range(1, encoder.batches_at_once + 1))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_working(self) -> bool:
        return self.encoder.is_alive and not self._closed and all(thread.is_alive() for thread in self._threads)

    def add(self, text: str, runs: Sequence[str], long: str) -> list[QueuedDocument]:
        """Queue a text for each model that these runs have; called in the event loop that awaits the answers."""
        by_model: dict[int, list[str]] = {}
        for name in runs:
            by_model.setdefault(self.encoder.runs[name].model, []).append(name)
        added = []
        for model, names in by_model.items():
            run = self.encoder.runs[names[0]]
            tokens = max(1, len(text) // CHARACTERS_PER_TOKEN)
            length = min(tokens, run.description.max_length)
            asked = () if run.reads else tuple(names)
            kind = (model, asked, long, round(2 * math.log2(length)))
            added.append(_queued(kind, text, names, long, length if long == "truncate" else tokens))
        return self._queue(added)

    def add_reasons(self, text: str, runs: Sequence[str], long: str) -> list[QueuedDocument]:
        """Queue a text for its reasons, with each of these runs."""
        return self._queue([_queued(_REASONS, text, [name], long, 0) for name in runs])

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
        """End the threads after what is waiting is answered, and then the encoder."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.encoder.close()

    def _queue(self, added: list[QueuedDocument]) -> list[QueuedDocument]:
        with self._changed:
            for document in added:
                self._waiting.setdefault(document.kind, deque()).append(document)
            self._changed.notify_all()
        return added

    def _work(self, lane: int) -> None:
        while batch := self._next_batch(lane):
            started = time.perf_counter()
            answers: list[Answer | None] | EncoderStoppedError
            try:
                texts, runs = [each.text for each in batch], [each.runs for each in batch]
                answers = self.encoder.compute(lane, Job(texts, runs, batch[0].long, lane == REASONS_LANE))
            except EncoderStoppedError as error:
                answers = error
            if lane != REASONS_LANE:
                self.observe(len(batch), _tokens(batch), time.perf_counter() - started)
                with self._changed:
                    self._tokens_under_way -= _tokens(batch)
                    self._changed.notify_all()
            batch[0].answer.get_loop().call_soon_threadsafe(_deliver, batch, answers)

    def _next_batch(self, lane: int) -> list[QueuedDocument]:
        """The documents to compute next; none: the queue is closed and empty."""
        explains = lane == REASONS_LANE
        with self._changed:
            while True:
                lines = [line for kind, line in self._waiting.items() if (kind is _REASONS) == explains]
                if not lines and self._closed:
                    return []
                if not lines:
                    self._changed.wait()
                    continue
                line = min(lines, key=lambda line: line[0].since)
                if explains:
                    return self._take(line, most=1)
                missing = line[0].since + self.wait_seconds - time.monotonic()
                share = self._tokens_under_way / (self.encoder.batches_at_once - 1)
                enough = min(share or self.batch_tokens, self.batch_tokens)
                if _tokens(line) >= enough or (not self._tokens_under_way and (missing <= 0 or self._closed)):
                    batch = self._take(line)
                    self._tokens_under_way += _tokens(batch)
                    return batch
                self._changed.wait(None if self._tokens_under_way else missing)

    def _take(self, line: deque[QueuedDocument], most: int | None = None) -> list[QueuedDocument]:
        batch = [line.popleft()]
        room = self.batch_tokens - batch[0].tokens
        while line and line[0].tokens <= room and len(batch) != most:
            batch.append(line.popleft())
            room -= batch[-1].tokens
        if not line:
            del self._waiting[batch[0].kind]
        return batch


def _queued(kind: Kind, text: str, runs: Sequence[str], long: str, tokens: int) -> QueuedDocument:
    answer = asyncio.get_running_loop().create_future()
    return QueuedDocument(kind, text, tuple(runs), long, tokens, time.monotonic(), answer)


def _tokens(documents: Iterable[QueuedDocument]) -> int:
    return sum(document.tokens for document in documents)


def _deliver(batch: Sequence[QueuedDocument], answers: list[Answer | None] | EncoderStoppedError) -> None:
    for number, document in enumerate(batch):
        if document.answer.done():  # withdrawn meanwhile
            continue
        if isinstance(answers, EncoderStoppedError):
            document.answer.set_exception(answers)
        else:
            document.answer.set_result(answers[number])

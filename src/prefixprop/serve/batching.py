"""The documents of all clients, computed together: a queue in front of the encoder's lanes.

Documents that can share a pass are of one kind: they are read in the same way, are of similar length (within a factor
of √2), and are for runs of one model. Readers of any runs on an encoder share a pass, so a batch has the readers that
any of its documents asks for. Other runs share a pass only if the documents ask for the same ones.

The kind whose first document came first is next. It waits a moment for more of that kind, and as many as fill a batch
go to a lane. Meanwhile another lane gets a full batch, or one as large as the first, so that it is tokenized when the
encoder is free, and the encoder works while answers are written and clients send more. Beside a GPU there are two
others, which get batches half as large as what is under way. Reasons are a kind of their own, with a lane of their
own, which gets one document at a time.

All of this happens in the event loop; a lane's thread only sends a batch to the encoder and waits for the answers.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from prefixprop.serve.encoder import LANES, REASONS_LANE, Answer, Encoder, EncoderProcess, EncoderStoppedError, Job

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
        self._free_lanes = [REASONS_LANE, *range(1, encoder.batches_at_once + 1)]
        self._under_way: dict[asyncio.Task[None], int] = {}  # batches and their tokens
        self._timer: asyncio.TimerHandle | None = None
        self._looks_soon = False
        self._closed = False
        self._threads = ThreadPoolExecutor(LANES, "lane")

    @property
    def is_working(self) -> bool:
        return self.encoder.is_alive and not self._closed

    def add(self, text: str, runs: Sequence[str], long: str) -> list[QueuedDocument]:
        """Queue a text for each model that these runs have."""
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
        for document in documents:
            document.answer.cancel()
            line = self._waiting.get(document.kind, deque())
            if document in line:
                line.remove(document)
                if not line:
                    del self._waiting[document.kind]

    async def close(self) -> None:
        """End after what is waiting is answered, and then end the encoder."""
        self._closed = True
        self._start_batches()
        while self._under_way:
            await asyncio.wait(self._under_way)
        self._threads.shutdown()
        self.encoder.close()

    def _queue(self, added: list[QueuedDocument]) -> list[QueuedDocument]:
        for document in added:
            self._waiting.setdefault(document.kind, deque()).append(document)
        if not self._looks_soon:  # when all texts that arrive now are queued
            self._looks_soon = True
            asyncio.get_running_loop().call_soon(self._start_batches)
        return added

    def _start_batches(self) -> None:
        """Give batches that are ready to lanes that are free."""
        self._looks_soon = False
        if _REASONS in self._waiting and REASONS_LANE in self._free_lanes:
            self._start(REASONS_LANE, self._take(self._waiting[_REASONS], most=1))
        while any(lane != REASONS_LANE for lane in self._free_lanes) and (line := self._ready_line()):
            self._start(max(self._free_lanes), self._take(line))

    def _ready_line(self) -> deque[QueuedDocument] | None:
        lines = [line for kind, line in self._waiting.items() if kind is not _REASONS]
        if not lines:
            return None
        line = min(lines, key=lambda line: line[0].since)
        tokens_under_way = sum(self._under_way.values())
        share = tokens_under_way / (self.encoder.batches_at_once - 1)
        if _tokens(line) >= min(share or self.batch_tokens, self.batch_tokens):
            return line
        if tokens_under_way:
            return None
        missing = line[0].since + self.wait_seconds - time.monotonic()
        if missing <= 0 or self._closed:
            return line
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(missing, self._wait_is_over)
        return None

    def _wait_is_over(self) -> None:
        self._timer = None
        self._start_batches()

    def _take(self, line: deque[QueuedDocument], most: int | None = None) -> list[QueuedDocument]:
        batch = [line.popleft()]
        room = self.batch_tokens - batch[0].tokens
        while line and line[0].tokens <= room and len(batch) != most:
            batch.append(line.popleft())
            room -= batch[-1].tokens
        if not line:
            del self._waiting[batch[0].kind]
        return batch

    def _start(self, lane: int, batch: list[QueuedDocument]) -> None:
        self._free_lanes.remove(lane)
        task = asyncio.create_task(self._compute(lane, batch))
        self._under_way[task] = _tokens(batch)
        task.add_done_callback(lambda task: self._finish(lane, task))

    async def _compute(self, lane: int, batch: list[QueuedDocument]) -> None:
        started, loop = time.perf_counter(), asyncio.get_running_loop()
        texts, runs = [each.text for each in batch], [each.runs for each in batch]
        job = Job(texts, runs, batch[0].long, lane == REASONS_LANE)
        try:
            answers = await loop.run_in_executor(self._threads, self.encoder.compute, lane, job)
        except EncoderStoppedError as error:
            for document in batch:
                if not document.answer.done():
                    document.answer.set_exception(error)
            return
        for document, answer in zip(batch, answers, strict=True):
            if not document.answer.done():  # or it was withdrawn meanwhile
                document.answer.set_result(answer)
        if lane != REASONS_LANE:
            self.observe(len(batch), _tokens(batch), time.perf_counter() - started)

    def _finish(self, lane: int, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._free_lanes.append(lane)
        self._start_batches()


def _queued(kind: Kind, text: str, runs: Sequence[str], long: str, tokens: int) -> QueuedDocument:
    answer = asyncio.get_running_loop().create_future()
    return QueuedDocument(kind, text, tuple(runs), long, tokens, time.monotonic(), answer)


def _tokens(documents: Iterable[QueuedDocument]) -> int:
    return sum(document.tokens for document in documents)

"""`prefixprop predict --engine ray`: tables of documents in, a folder of Parquet parts out, on many machines.

A part answers a range of rows of one file and is named after both, so every call divides the input in the same way.
A worker writes a part under a temporary name and renames it when it is complete. Another worker repeats what a killed
worker had begun, and a later call skips the parts that exist: no document is lost, and none is answered twice.

Workers are plain Ray actors. Ray Data would send rows between machines, although workers can read and write the files
themselves. It would also retry a part that kills its worker without end.

All files are read once first: to find errors, to count the documents, and to compute the digests in `_origin.json`,
with which a later call refuses other documents, runs and options (`outputs.Origin`).

All machines have to see the runs, the input and the output under the same paths.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixprop.atomic_files import clear_leftovers, replacing_file, write_json
from prefixprop.data.files import Columns
from prefixprop.lazy_imports import import_optional
from prefixprop.predict.inputs import MAX_DOCUMENTS, InputDocument, read_inputs, windows
from prefixprop.predict.outputs import BY_RUN, JsonLines, Origin, add_to_digest, speed
from prefixprop.progress import Progress
from prefixprop.ray_connection import connect, disconnect, live_nodes

if TYPE_CHECKING:
    from prefixprop.predict.trained_model import TrainedModel

PURPOSE = "Predictions with --engine ray"
ORIGIN = "_origin.json"  # readers of Parquet folders pass over names that begin so
_TABLES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.xz")
_MOST_DEATHS = 4  # of workers at the same file or part
_CORES = 4  # of a worker without a GPU
_AT_ONCE = 2  # parts of a worker: one is read and written while the model computes the other

_EXPECTED = (ValueError, OSError, ImportError, RuntimeError)  # with a message for the user


@dataclass(frozen=True)
class Work:
    """What every worker has to know; `folder` is where the command was called."""

    folder: Path
    runs: dict[str, Path]
    columns: Columns
    long: str
    batch_tokens: int | None
    modules: Sequence[str] = ()


def tables_of(source: Path, output: Path) -> dict[str, Path]:
    """The file, or the tables in the folder and below it, by name."""
    if not source.exists():
        raise FileNotFoundError(f"{source}: there is no such file or folder.")
    source = source.resolve()
    if output.resolve().is_relative_to(source):
        raise ValueError(f"{output}: the output is inside the input; choose another --output.")
    if source.is_file():
        return {source.name: source}
    files = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if path.is_file()}
    found = {name: path for name, path in files.items() if name.endswith(_TABLES) and path.name[0] not in "._"}
    if not found:
        raise ValueError(f"{source}: --engine ray needs a folder with tables in it ({', '.join(_TABLES)}).")
    return found


def predict_parts(
    files: Mapping[str, Path],
    output: Path,
    work: Work,
    origin: Origin,
    workers: int | None,
    address: str | None,
    progress: Progress,
) -> None:
    """Predict the documents of files, and tell how it goes."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output}: this is a file; with --engine ray the output is a folder.")
    begun = output.exists() and any(output.iterdir())
    earlier = origin.read_earlier(output / ORIGIN, output) if begun else origin
    ray = connect(address, PURPOSE)
    try:
        count, cpus, gpus = _room(live_nodes(ray), workers)
        actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=_AT_ONCE)(Worker)
        pool = _Pool(ray, lambda: actor.remote(work, cpus), count)
        progress.stage("starting workers")
        sizes: dict[str, int] = {}
        digests: dict[str, str] = {}
        for name, documents, digest in pool.answers("read", list(files.items())):
            sizes[name], digests[name] = documents, digest
            progress.advance("reading", len(sizes), len(files))
        for name, digest in earlier.files.items():
            if digests.get(name) != digest:
                raise ValueError(
                    f"{output}: the output belongs to another input, whose {name} "
                    f"{'was different' if name in digests else 'is not here'}. Give the same input, which may have "
                    "more files, or choose another --output."
                )
        output.mkdir(parents=True, exist_ok=True)
        clear_leftovers(output)
        total = sum(sizes.values())
        write_json(output / ORIGIN, asdict(replace(origin, documents=total, files=digests)))

        parts = list(_parts(files, sizes, origin.part_rows or 1, output.resolve()))
        left = [part for part in parts if not part.output.exists()]
        found = total - sum(part.stop - part.start for part in left)
        answered, tokens_read, tokens, began, how_fast = 0, 0, 0, time.perf_counter(), ""
        for own in pool.answers("predict", left):
            answered, tokens_read, tokens = answered + own[0], tokens_read + own[1], tokens + own[2]
            how_fast = speed(answered, tokens_read, time.perf_counter() - began)
            progress.advance("predicting", found + answered, total, how_fast)
    finally:
        disconnect(ray)
    progress.line(f"{total:,} documents in {output}, {answered:,} of them answered by this call")
    if tokens_read < tokens:
        unread = 1 - tokens_read / tokens
        progress.line(f"Warning: {unread:.0%} of all tokens are not read; --long chunk-average reads the rest")
    if answered:
        progress.line(how_fast)


class _Pool:
    """Workers, which get questions once they have started; one that was killed is replaced."""

    def __init__(self, ray: Any, new_worker: Callable[[], Any], count: int) -> None:
        self._ray, self._new_worker = ray, new_worker
        self._free: list[Any] = []  # each worker as often as it can be asked
        self._asked: dict[Any, tuple[Any, Any]] = {}  # the worker and the question, None if it starts, by the answer
        self._dead: set[Any] = set()
        for _ in range(count):
            self._start()

    def answers(self, method: str, questions: Iterable[Any]) -> Iterator[Any]:
        """The answers, as they come; a fault that a worker found in the user's files is raised."""
        left, deaths = deque(questions), Counter[Any]()
        while left or any(question is not None for _, question in self._asked.values()):
            while left and self._free:
                worker, question = self._free.pop(), left.popleft()
                self._asked[getattr(worker, method).remote(question)] = worker, question
            ((ready,), _) = self._ray.wait(list(self._asked))
            worker, question = self._asked.pop(ready)
            try:
                answer = self._ray.get(ready)
            except self._ray.exceptions.RayActorError as error:
                deaths[question] += 1
                if deaths[question] == _MOST_DEATHS:
                    raise RuntimeError(
                        f"{_MOST_DEATHS} workers were killed at the same work, as happens when memory runs out; "
                        "choose fewer --workers or a smaller --batch-tokens. The same command continues."
                    ) from error
                left.extend([] if question is None else [question])
                self._replace(worker)
                continue
            if isinstance(answer, Exception):
                raise answer
            if question is None:
                deaths[None] = 0
                self._free += [worker] * _AT_ONCE
            else:
                self._free.append(worker)
                yield answer

    def _start(self) -> None:
        worker = self._new_worker()
        self._asked[worker.start.remote()] = worker, None

    def _replace(self, worker: Any) -> None:
        if worker not in self._dead:
            self._dead.add(worker)
            self._free = [other for other in self._free if other is not worker]
            self._start()


def _room(nodes: Sequence[Mapping[str, float]], wanted: int | None) -> tuple[int, int, int]:
    """How many workers there are, and the CPUs and GPUs of each: a GPU, or a few cores where there is none."""
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    cores = [int(node.get("CPU", 0)) for node in nodes]
    most = gpus or sum(cores)
    if (wanted or 1) > most:
        kind = "GPUs" if gpus else "cores"
        raise ValueError(f"--workers {wanted or 1}: the cluster has {most} {kind}, and every worker takes one.")
    if gpus:
        return wanted or gpus, 1, 1
    each = min(_CORES, max(cores)) if wanted is None else max(1, most // wanted)
    while (room := sum(own // each for own in cores)) < (wanted or 1):
        each -= 1
    return wanted or room, each, 0


@dataclass(frozen=True)
class Part:
    """Rows of a file, from 0, and the file with their predictions."""

    path: Path
    start: int
    stop: int
    output: Path


def _parts(files: Mapping[str, Path], sizes: Mapping[str, int], rows: int, output: Path) -> Iterator[Part]:
    for name, path in files.items():
        for number, start in enumerate(range(0, sizes[name], rows)):
            stop = min(start + rows, sizes[name])
            yield Part(path, start, stop, output / f"{name}-{number:06d}.parquet")


class Worker:
    """An actor of Ray with the models, which it loads once. It returns what is wrong with the user's files."""

    def __init__(self, work: Work, threads: int) -> None:
        self.work, self.threads = work, threads
        self._loading, self._reading = threading.Lock(), threading.Lock()
        self._opened: tuple[Path, int, Iterator[InputDocument]] = (Path(), 0, iter(()))

    def start(self) -> None:
        """Return when it is there."""

    def read(self, named: tuple[str, Path]) -> tuple[str, int, str] | Exception:
        """Read a file to the end: its name, the number of its documents and their digest."""
        digest, documents = hashlib.sha256(), 0
        try:
            for document in read_inputs(named[1], self.work.columns):
                add_to_digest(digest, document)
                documents += 1
        except _EXPECTED as error:
            return error
        return named[0], documents, digest.hexdigest()

    def predict(self, part: Part) -> tuple[int, int, int] | Exception:
        """Write a part: how many documents it has, and how many of their tokens were read."""
        try:
            return self._predict(self._documents(part), part.output)
        except _EXPECTED as error:
            return error

    def _predict(self, documents: list[InputDocument], output: Path) -> tuple[int, int, int]:
        with self._loading:
            runs = self._runs
        from prefixprop.predict.trained_model import PredictionOptions, predict_with_each

        options = PredictionOptions(self.work.long, self.work.batch_tokens)
        form, rows, counts = JsonLines({name: run.label_names for name, run in runs.items()}), [], [0, 0]
        for window in windows(documents, lambda document: document.text, first=MAX_DOCUMENTS):
            answers = predict_with_each(list(runs.values()), [document.text for document in window], options)
            for document, predictions in zip(window, answers, strict=True):
                # Half of a surrogate pair has no UTF-8 form.
                name = document.id.encode("utf-8", errors="backslashreplace").decode("utf-8")
                rows.append(form.record(name, predictions))
                read = max(predictions, key=lambda prediction: prediction.tokens_read)
                counts = [counts[0] + read.tokens_read, counts[1] + read.tokens]
        arrow, parquet = (import_optional(name, PURPOSE, extra="ray") for name in ("pyarrow", "pyarrow.parquet"))
        with replacing_file(output) as temporary:
            parquet.write_table(arrow.Table.from_pylist(rows, schema=_schema(runs)), temporary)
        return len(rows), counts[0], counts[1]

    @cached_property
    def _runs(self) -> dict[str, TrainedModel]:
        import torch

        from prefixprop.predict.loading import load_by_name

        torch.set_num_threads(self.threads)
        os.chdir(self.work.folder)
        if self.work.modules:
            sys.path.insert(0, str(self.work.folder))
        for module in self.work.modules:
            importlib.import_module(module)
        return load_by_name(self.work.runs)

    def _documents(self, part: Part) -> list[InputDocument]:
        """The documents of a part. A file stays open for the next one, which usually begins behind it."""
        with self._reading:
            path, place, documents = self._opened
            if path != part.path or place > part.start:
                place, documents = 0, read_inputs(part.path, self.work.columns)
            found = list(itertools.islice(documents, part.start - place, part.stop - place))
            self._opened = part.path, part.stop, documents
        if len(found) != part.stop - part.start:
            raise ValueError(f"{part.path}: the file has changed since it was read the first time.")
        return found


def _schema(runs: Mapping[str, TrainedModel]) -> Any:
    """The columns of all parts, those that no document of a part has included."""
    arrow = import_optional("pyarrow", PURPOSE, extra="ray")
    text, number, count = arrow.string(), arrow.float64(), arrow.int64()
    by_run = {
        name: [
            ("label", text),
            ("confidence", number),
            ("probabilities", arrow.struct([(label, number) for label in run.label_names])),
            *[("tokens_read", count), ("tokens", count), ("truncated", arrow.bool_()), ("chunks", count)],
            *([] if run.trust is None else [("decision", text)]),
            *([("labels", arrow.list_(text))] if run.several_labels else []),
        ]
        for name, run in runs.items()
    }
    if len(by_run) == 1:
        (columns,) = by_run.values()
        return arrow.schema([("id", text), *columns])
    runs_column = arrow.struct([(name, arrow.struct(columns)) for name, columns in by_run.items()])
    return arrow.schema([("id", text), (BY_RUN, runs_column)])

"""`prefixprop predict --engine ray`: tables of documents in, a folder of Parquet parts out, on many machines.

A part answers a range of rows of one file and is named after both, so every call divides the input alike. A worker
writes a part under a temporary name and renames it when it is whole. Ray Data gives what a killed worker had begun to
another, and a later call skips the parts that are there: no document is lost, and none is answered twice.

All files are read once before: to find faults, to count the documents, and for the digests in `_origin.json`, with
which a later call refuses other documents, runs and options (`outputs.Origin`).

All machines have to see the runs, the input and the output under the same paths.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixprop.atomic_files import clear_leftovers, replacing_file, write_json
from prefixprop.data.files import Columns
from prefixprop.optional_packages import import_optional
from prefixprop.predict.inputs import MAX_DOCUMENTS, InputDocument, read_inputs, windows
from prefixprop.predict.outputs import BY_RUN, JsonLines, Origin, add_to_digest
from prefixprop.ray_connection import connect, disconnect, live_nodes

if TYPE_CHECKING:
    from prefixprop.predict.trained_model import TrainedModel

PURPOSE = "Predictions with --engine ray"
ORIGIN = "_origin.json"  # readers of Parquet folders pass over names that begin so
_TABLES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.xz")
_BEGUN = ".begun"
_MOST_ATTEMPTS = 4
_CORES = 4  # of a worker without a GPU
_AT_ONCE = 2  # parts of a worker: one is read and written while the model computes the other

Answer = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What every worker has to know; `folder` is where the command was called."""

    folder: Path
    runs: dict[str, Path]
    columns: Columns
    long: str
    batch_tokens: int
    modules: Sequence[str] = ()


@dataclass
class State:
    """How far a call is; `tokens_read` and `tokens` are those of the documents that it `answered` itself."""

    stage: str
    total: int
    done: int = 0
    answered: int = 0
    tokens_read: int = 0
    tokens: int = 0


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


def check_folder(output: Path, origin: Origin) -> Origin:
    """What an earlier call has made of this folder, which must have had these runs and options."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output}: this is a file; with --engine ray the output is a folder.")
    if not output.exists() or not any(output.iterdir()):
        return origin
    return origin.read_earlier(output / ORIGIN, output)


def predict_parts(
    files: Mapping[str, Path], output: Path, work: Work, origin: Origin, workers: int | None, address: str | None
) -> Iterator[State]:
    """Predict the documents of files; tells after each file that was read, and each part, how far it is."""
    earlier = check_folder(output, origin)
    ray = connect(address, PURPOSE)
    try:
        data = import_optional("ray.data", PURPOSE, extra="ray")
        data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        count, cpus, gpus = _room(live_nodes(ray), workers)
        state = State("reading", len(files))
        sizes: dict[str, int] = {}
        digests: dict[str, str] = {}
        rows = [{"name": name, "path": str(path)} for name, path in files.items()]
        for answer in _answers(data.from_items(rows, override_num_blocks=len(rows)).map(partial(_read, work))):
            sizes[answer["name"]], digests[answer["name"]] = answer["documents"], answer["digest"]
            state.done += 1
            yield state
        for name, digest in earlier.files.items():
            if digests.get(name) != digest:
                raise ValueError(
                    f"{output}: the output belongs to another input, whose {name} "
                    f"{'was different' if name in digests else 'is not here'}. Give the same input, which may have "
                    "more files, or choose another --output."
                )
        output.mkdir(parents=True, exist_ok=True)
        clear_leftovers(output)
        for begun in output.rglob(f".*{_BEGUN}"):
            begun.unlink()
        write_json(output / ORIGIN, asdict(replace(origin, documents=sum(sizes.values()), files=digests)))

        parts = list(_parts(files, sizes, origin.part_rows or 1, output.resolve()))
        left = [part for part in parts if not Path(part["output"]).exists()]
        total = sum(sizes.values())
        state = State("predicting", total, total - sum(part["stop"] - part["start"] for part in left))
        yield state
        if not left:
            return
        pool = data.ActorPoolStrategy(
            size=min(count, len(left)), max_concurrent_calls_per_actor=_AT_ONCE, enable_true_multi_threading=True
        )
        given = {"fn_constructor_args": (work, cpus), "num_cpus": cpus, "num_gpus": gpus}
        dataset = data.from_items(left, override_num_blocks=len(left))
        for answer in _answers(dataset.map(Worker, compute=pool, **given)):
            state.answered += answer["documents"]
            state.done += answer["documents"]
            state.tokens_read += answer["tokens_read"]
            state.tokens += answer["tokens"]
            yield state
    except ray.exceptions.RayError as error:
        last_line = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise RuntimeError(f"Ray could not go on ({last_line}); the same command continues.") from error
    finally:
        disconnect(ray)


def _answers(dataset: Any) -> Iterator[Answer]:
    for answer in dataset.iter_rows():
        if answer["error"]:
            raise RuntimeError(answer["error"])
        yield answer


def _room(nodes: Sequence[Mapping[str, float]], wanted: int | None) -> tuple[int, int, int]:
    """How many workers there are, and the CPUs and GPUs of each: a GPU, or a few cores where there is none."""
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    cores = [int(node.get("CPU", 0)) for node in nodes]
    most = gpus or sum(cores)
    if wanted is not None and wanted > most:
        kind = "GPUs" if gpus else "cores"
        raise ValueError(f"--workers {wanted}: the cluster has {most} {kind}, and every worker takes one.")
    if gpus:
        return wanted or gpus, 1, 1
    each = min(_CORES, max(cores)) if wanted is None else max(1, most // wanted)
    while (room := sum(own // each for own in cores)) < (wanted or 1):
        each -= 1
    return wanted or room, each, 0


def _parts(files: Mapping[str, Path], sizes: Mapping[str, int], rows: int, output: Path) -> Iterator[dict[str, Any]]:
    for name, path in files.items():
        for number, start in enumerate(range(0, sizes[name], rows)):
            part = str(output / f"{name}-{number:06d}.parquet")
            yield {"path": str(path), "start": start, "stop": min(start + rows, sizes[name]), "output": part}


# --- on the workers -----------------------------------------------------------------------------------------------


def _read(work: Work, row: dict[str, str]) -> Answer:
    """A task that reads a file to the end."""
    digest, documents, error = hashlib.sha256(), 0, ""
    try:
        for document in read_inputs(row["path"], work.columns):
            add_to_digest(digest, document)
            documents += 1
    except (ValueError, OSError, ImportError) as problem:
        error = _sentence(problem)
    return {"name": row["name"], "documents": documents, "digest": digest.hexdigest(), "error": error}


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


class Worker:
    """A process of Ray with the models, which it loads once, and answers parts with."""

    def __init__(self, work: Work, threads: int) -> None:
        self.work, self.threads = work, threads
        self._loading, self._reading = threading.Lock(), threading.Lock()
        self._opened: tuple[str, int, Iterator[InputDocument]] = ("", 0, iter(()))

    def __call__(self, part: dict[str, Any]) -> Answer:
        answer: Answer = {"documents": 0, "tokens_read": 0, "tokens": 0, "error": ""}
        try:
            # Ray Data starts killed workers again without end.
            begun = Path(part["output"]).with_name(f".{Path(part['output']).name}{_BEGUN}")
            begun.parent.mkdir(parents=True, exist_ok=True)
            with begun.open("ab") as file:
                file.write(b".")
                attempts = file.tell()
            if attempts > _MOST_ATTEMPTS:
                raise RuntimeError(
                    f"{part['path']}, from row {part['start'] + 1:,}: a worker was killed {_MOST_ATTEMPTS} times "
                    "meanwhile, as happens when memory runs out; choose fewer --workers or a smaller --batch-tokens."
                )
            answer |= self._predict(self._documents(part), Path(part["output"]))
            begun.unlink()
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            answer["error"] = _sentence(error)
        return answer

    def _predict(self, documents: list[InputDocument], output: Path) -> Answer:
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
        return {"documents": len(rows), "tokens_read": counts[0], "tokens": counts[1]}

    @cached_property
    def _runs(self) -> dict[str, TrainedModel]:
        import torch

        from prefixprop.predict.loading import load_runs

        torch.set_num_threads(self.threads)
        os.chdir(self.work.folder)
        sys.path.insert(0, str(self.work.folder))
        for module in self.work.modules:
            importlib.import_module(module)
        runs = dict(zip(self.work.runs, load_runs(list(self.work.runs.values())), strict=True))
        for run in runs.values():
            run.check_reads_documents()
        return runs

    def _documents(self, part: dict[str, Any]) -> list[InputDocument]:
        """The documents of a part. A file stays open for the next one, which usually begins behind it."""
        with self._reading:
            path, place, documents = self._opened
            if path != part["path"] or place > part["start"]:
                place, documents = 0, iter(read_inputs(part["path"], self.work.columns))
            found = list(itertools.islice(documents, part["start"] - place, part["stop"] - place))
            self._opened = part["path"], part["stop"], documents
        if len(found) != part["stop"] - part["start"]:
            raise ValueError(f"{part['path']}: the file has changed since it was read the first time.")
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
            *([] if run.thresholds is None else [("labels", arrow.list_(text))]),
        ]
        for name, run in runs.items()
    }
    if len(by_run) == 1:
        (columns,) = by_run.values()
        return arrow.schema([("id", text), *columns])
    runs_column = arrow.struct([(name, arrow.struct(columns)) for name, columns in by_run.items()])
    return arrow.schema([("id", text), (BY_RUN, runs_column)])

"""Predictions as lines of a growing file: JSON lines, which a later call can continue, or CSV, which it cannot.

JSON lines have the fields of a `Prediction` after the `id`; CSV has them as columns, with one `probability of NAME`
for each label. Where a document can have several labels, `labels` has those that it gets, in CSV with semicolons.
With several runs a line has the predictions of all: in JSON, `predictions` has these fields by the name of the run;
in CSV, the columns of each run begin with its name.

`FILE.origin.json` beside JSON lines records what made them: the runs, the options, and a digest of the documents
answered so far. Only the same runs, options and documents continue the file; the input may have grown at its end.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from prefixprop.atomic_files import write_json
from prefixprop.choices import PREDICTION_FORMATS
from prefixprop.predict.inputs import InputDocument

if TYPE_CHECKING:
    from prefixprop.predict.trained_model import Prediction

BY_RUN = "predictions"
_COLUMNS = ("label", "confidence", "decision", "tokens_read", "tokens", "truncated", "chunks")
_FORMULA = re.compile(r"[\s\x00-\x1f]*[=+\-@]")  # what a spreadsheet would compute
_JSON_OPENING = b'{"id": "'
_START_AGAIN = "choose another --output, or remove it"


def format_of(output: Path | None, chosen: str | None) -> str:
    """The format of the output: the `chosen` one, or the one that the file's ending says."""
    ending = None if output is None else output.suffix.lower().removeprefix(".")
    if ending not in PREDICTION_FORMATS:
        if chosen is None and output is not None:
            endings = " or ".join(f".{name}" for name in PREDICTION_FORMATS)
            raise ValueError(f"{output}: give --output a name that ends in {endings}, or choose a --format.")
        return chosen or PREDICTION_FORMATS[0]
    if chosen not in (None, ending):
        raise ValueError(f"{output}: the name says {ending}, but --format says {chosen}; leave --format out.")
    return str(ending)


@contextlib.contextmanager
def locked(output: Path) -> Iterator[None]:
    """Keep other processes from writing this file or folder; the lock ends with the process, even a killed one."""
    target = output.resolve()  # one lock, whatever the file is called
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(target.with_name(f".{target.name}.prefixprop-lock")).acquire(blocking=False)
    except Timeout:
        kind = "folder" if output.is_dir() else "file"
        raise ValueError(
            f"{output}: another process is writing this {kind}; wait for it, or choose another --output."
        ) from None
    with lock:
        yield


def speed(documents: int, tokens: int, seconds: float) -> str:
    return f"{documents / max(seconds, 1e-9):,.1f} documents/s, {tokens / max(seconds, 1e-9):,.0f} tokens/s"


class JsonLines:
    """Predictions of runs, whose label names are given by the name of the run, as JSON lines."""

    header = b""

    def __init__(self, label_names: Mapping[str, tuple[str, ...]]) -> None:
        self.runs = list(label_names)

    def record(self, name: str, predictions: Sequence[Prediction]) -> dict[str, Any]:
        fields = [{name: value for name, value in vars(one).items() if value is not None} for one in predictions]
        record = fields[0] if len(self.runs) == 1 else {BY_RUN: dict(zip(self.runs, fields, strict=True))}
        return {"id": name, **record}

    def line(self, name: str, predictions: Sequence[Prediction]) -> bytes:
        text = json.dumps(self.record(name, predictions), ensure_ascii=False, allow_nan=False)
        # Half of a surrogate pair has no UTF-8 form; its escape is the same character to JSON.
        return text.encode("utf-8", errors="backslashreplace") + b"\n"

    def parsed(self, line: bytes) -> tuple[str, list[Prediction]]:
        """The id and the predictions in a line; `ValueError`, `TypeError` or `KeyError` if it is no such line."""
        from prefixprop.predict.trained_model import Prediction

        record = json.loads(line)
        name = record.pop("id")
        by_run = {self.runs[0]: record} if len(self.runs) == 1 else record[BY_RUN]
        if list(by_run) != self.runs:
            raise ValueError("the line is of other runs")
        return name, [Prediction(**found) for found in by_run.values()]


class CommaSeparated:
    """Predictions of runs as CSV that is safe to open in a spreadsheet; some runs give `several_labels`."""

    def __init__(self, label_names: Mapping[str, tuple[str, ...]], several_labels: Collection[str] = ()) -> None:
        columns = [
            column if len(label_names) == 1 else f"{run}: {column}"
            for run, names in label_names.items()
            for column in (
                *(("labels",) if run in several_labels else ()),
                *_COLUMNS,
                *(f"probability of {name}" for name in names),
            )
        ]
        self.header = _csv_line(["id", *columns])

    def line(self, name: str, predictions: Sequence[Prediction]) -> bytes:
        cells: list[Any] = [name]
        for one in predictions:
            if one.labels is not None:
                cells.append("; ".join(one.labels))
            cells += [one.label, one.confidence, one.decision, one.tokens_read, one.tokens]
            cells += [str(one.truncated).lower(), one.chunks, *one.probabilities.values()]
        return _csv_line(cells)


def _csv_line(values: list[Any]) -> bytes:
    text = io.StringIO()
    cells = [_text_cell(value) if isinstance(value, str) else value for value in values]
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8")


def _text_cell(text: str) -> str:
    """The text on one line, after an apostrophe if a spreadsheet would take it for a formula."""
    line = " ".join(text.splitlines()).encode("utf-8", errors="backslashreplace").decode("utf-8")
    return f"'{line}" if _FORMULA.match(line) else line


@dataclass(frozen=True)
class Origin:
    """What made an output; `run` is the name of the run for people.

    `digest` is that of the first `documents` documents of the input, whose predictions are in the output. A folder of
    parts, with `part_rows` documents each, has the digests of the `files` that it answers.
    """

    run: str
    fingerprint: str
    long: str
    text_column: str
    id_column: str | None
    documents: int = 0
    digest: str = ""
    part_rows: int | None = None
    files: dict[str, str] = field(default_factory=dict)

    def read_earlier(self, path: Path, output: Path) -> Origin:
        """The origin in the file `path`, which has made `output`; raise if its runs or options are not these."""
        try:
            earlier = Origin(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise ValueError(
                f"{output}: this cannot be continued, because {path.name}, which records what made it, is missing or "
                f"damaged; {_START_AGAIN}."
            ) from error
        changes = []
        if earlier.fingerprint != self.fingerprint:
            same = "which has changed since" if earlier.run == self.run else f"now {self.run}"
            changes.append(f"the run was {earlier.run}, {same}")
        for name in ("long", "text_column", "id_column", "part_rows"):
            before, now = getattr(earlier, name), getattr(self, name)
            if before != now:
                option = "--" + name.replace("_", "-")
                changes.append(f"{option} was {before or 'not given'}, now {now or 'not given'}")
        if changes:
            raise ValueError(
                f"{output}: this cannot be continued, because it was started with other options: "
                f"{'; '.join(changes)}. Give the same run and options, {_START_AGAIN}."
            )
        return earlier


def add_to_digest(digest: Any, document: InputDocument) -> None:
    for text in (document.id, document.text):
        content = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d " % len(content))
        digest.update(content)


class ResumableOutput:
    """A file of JSON lines and its origin; what the file already has is taken over if `origin` made it."""

    def __init__(self, path: Path, form: JsonLines, origin: Origin) -> None:
        self.path, self.form = path, form
        self.unanswered: list[InputDocument] = []  # documents that `answered` had to read beyond the last answer
        self._origin_path = path.with_name(f"{path.name}.origin.json")
        self._digest = hashlib.sha256()
        if path.exists() and path.stat().st_size > 0:
            self._earlier = origin.read_earlier(self._origin_path, path)
        else:
            self._earlier = origin
            write_json(self._origin_path, asdict(origin))
        self._origin = replace(origin, documents=0)

    def answered(self, documents: Iterator[InputDocument]) -> Iterator[tuple[InputDocument, list[Prediction]]]:
        """Take from `documents` those that the file answers, with their predictions; refuse other documents.

        At the end, the file is cut after the last answer that is whole and whose document the digest includes: a
        killed process may have written more.
        """
        if not self.path.exists():
            return
        count, end = 0, 0
        with self.path.open("r+b") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    if not (line.startswith(_JSON_OPENING) or _JSON_OPENING.startswith(line)):
                        raise self._not_ours(number)
                    break
                try:
                    name, predictions = self.form.parsed(line)
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    raise self._not_ours(number) from error
                if number > self._earlier.documents:
                    continue
                document = self._take(documents)
                if document.id != name:
                    raise self._another_input(f"it has the document {name!r} where the input has {document.id!r}")
                count, end = number, end + len(line)
                yield document, predictions
            at_the_last_answer = self._digest.copy()
            self.unanswered = [self._take(documents) for _ in range(self._earlier.documents - count)]
            if self._earlier.documents and self._digest.hexdigest() != self._earlier.digest:
                raise self._another_input(
                    f"the first {self._earlier.documents:,} documents are not those that it was made from"
                )
            file.truncate(end)
        self._digest = at_the_last_answer
        self._origin = replace(self._origin, documents=count)

    def record(self, documents: Sequence[InputDocument]) -> None:
        """Note that these documents, which come next in the input, have been answered in the file."""
        for document in documents:
            add_to_digest(self._digest, document)
        count = self._origin.documents + len(documents)
        self._origin = replace(self._origin, documents=count, digest=self._digest.hexdigest())
        write_json(self._origin_path, asdict(self._origin))

    def _take(self, documents: Iterator[InputDocument]) -> InputDocument:
        document = next(documents, None)
        if document is None:
            raise self._another_input("it has more documents")
        add_to_digest(self._digest, document)
        return document

    def _another_input(self, problem: str) -> ValueError:
        return ValueError(
            f"{self.path}: the output belongs to another input: {problem}. Give --resume the same input, which may "
            "have more documents at its end, or choose another --output."
        )

    def _not_ours(self, number: int) -> ValueError:
        return ValueError(
            f"{self.path}:{number}: this line was not written by this run, so --resume cannot continue the file; "
            f"{_START_AGAIN}."
        )

"""Predictions as lines of a growing file, which a later call can continue after a kill.

JSON lines have the fields of a `Prediction` behind the `id`; CSV has them as columns, with one `probability of NAME`
per label. With several runs a line has the answers of all: in JSON `predictions` has these fields by the name of the
run; in CSV the columns of each run begin with its name. A small file beside the output says what made it, so that
nothing else continues it.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import write_json
from prefixprop.choices import PREDICTION_FORMATS
from prefixprop.predict.inputs import InputDocument
from prefixprop.predict.predictor import Prediction

_PROBABILITY = "probability of "
_COLUMNS = ("label", "confidence", "tokens", "truncated", "chunks")
_BY_RUN = "predictions"


@dataclass(frozen=True)
class StoredPrediction:
    """A line of an output file."""

    id: str
    predictions: tuple[Prediction, ...]  # one for each run


class LineFormat(ABC):
    """How predictions become lines, and lines become predictions again.

    `label_names` are those of each run, by its name.
    """

    def __init__(self, label_names: Mapping[str, tuple[str, ...]]) -> None:
        self.label_names = label_names
        self.has_several = len(label_names) > 1

    @abstractmethod
    def header(self) -> bytes:
        """The line before the predictions; empty if there is none."""

    @property
    @abstractmethod
    def opening(self) -> bytes:
        """How every file begins."""

    @abstractmethod
    def line(self, name: str, predictions: Sequence[Prediction]) -> bytes:
        """The line of one document, with what each run predicts, its end included."""

    def written_id(self, name: str) -> str:
        """The id as a file of this format has it."""
        return name

    @abstractmethod
    def parsed(self, line: bytes) -> tuple[str, list[dict[str, Any]]]:
        """The id in a line that `line` wrote, and each run's fields; anything else raises `ValueError`."""

    def stored(self, line: bytes) -> StoredPrediction:
        """A line as predictions of these runs' labels; anything else raises `ValueError`."""
        name, fields = self.parsed(line)
        for found, label_names in zip(fields, self.label_names.values(), strict=True):
            if tuple(found["probabilities"]) != label_names:
                raise ValueError(f"its labels are {', '.join(found['probabilities'])}")
        return StoredPrediction(name, tuple(Prediction(**found) for found in fields))


class JsonLines(LineFormat):
    @property
    def opening(self) -> bytes:
        return b'{"id": "'

    def header(self) -> bytes:
        return b""

    def line(self, name: str, predictions: Sequence[Prediction]) -> bytes:
        by_run = {run: vars(one) for run, one in zip(self.label_names, predictions, strict=True)}
        fields = {_BY_RUN: by_run} if self.has_several else vars(predictions[0])
        text = json.dumps({"id": name, **fields}, ensure_ascii=False, allow_nan=False)
        # Half of a surrogate pair has no UTF-8 form; its escape is the same character to JSON.
        return text.encode("utf-8", errors="backslashreplace") + b"\n"

    def parsed(self, line: bytes) -> tuple[str, list[dict[str, Any]]]:
        record = json.loads(line)
        name = record.pop("id")
        by_run = record.pop(_BY_RUN) if self.has_several else dict.fromkeys(self.label_names, record)
        if list(by_run) != list(self.label_names):
            raise ValueError(f"its runs are {', '.join(by_run)}")
        for fields in by_run.values():
            if fields.keys() != set(Prediction.__dataclass_fields__) or not isinstance(fields["probabilities"], dict):
                raise ValueError("it is not a prediction")
        return name, list(by_run.values())


class CommaSeparated(LineFormat):
    @property
    def opening(self) -> bytes:
        return self.header()

    def header(self) -> bytes:
        columns = [
            f"{run}: {column}" if self.has_several else column
            for run, label_names in self.label_names.items()
            for column in (*_COLUMNS, *(_PROBABILITY + name for name in label_names))
        ]
        return _csv_line(["id", *columns])

    def line(self, name: str, predictions: Sequence[Prediction]) -> bytes:
        cells: list[Any] = [name]
        for one in predictions:
            numbers = [one.confidence, one.tokens, str(one.truncated).lower(), one.chunks]
            cells += [one.label, *numbers, *one.probabilities.values()]
        return _csv_line(cells)

    def written_id(self, name: str) -> str:
        return _one_line(name)

    def parsed(self, line: bytes) -> tuple[str, list[dict[str, Any]]]:
        ((name, *values),) = csv.reader([line.decode("utf-8")], strict=True)
        runs = []
        for label_names in self.label_names.values():
            own, values = values[: len(_COLUMNS) + len(label_names)], values[len(_COLUMNS) + len(label_names) :]
            label, confidence, tokens, truncated, chunks, *probabilities = own
            by_name = zip(label_names, map(float, probabilities), strict=True)
            runs.append(
                {
                    "label": label,
                    "confidence": float(confidence),
                    "probabilities": dict(by_name),
                    "tokens": int(tokens),
                    "truncated": truncated == "true",
                    "chunks": int(chunks),
                }
            )
        if values:
            raise ValueError("it is not a prediction")
        return name, runs


def line_format(name: str, label_names: Mapping[str, tuple[str, ...]]) -> LineFormat:
    """The format of that name, for predictions of runs with these labels."""
    formats = dict(zip(PREDICTION_FORMATS, (JsonLines, CommaSeparated), strict=True))
    return formats[name](label_names)


def drop_half_written_line(path: Path, form: LineFormat) -> None:
    """Cut the file after its last complete line: a killed process may have written part of the next one."""
    with path.open("r+b") as file:
        # A file of another kind must not lose a byte.
        opening = file.read(len(form.opening))
        if not form.opening.startswith(opening):
            raise _not_ours(path, 1, "it begins differently")
        end = file.seek(0, io.SEEK_END)
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        file.truncate(end)


def read_stored(path: Path, form: LineFormat) -> Iterator[StoredPrediction]:
    """The predictions of an output file, one at a time; any other line raises `ValueError` with `file:line`."""
    with path.open("rb") as file:
        header = form.header()
        for number, line in enumerate(file, start=1):
            if number == 1 and header:
                if line != header:
                    raise _not_ours(path, 1, "its columns differ")
                continue
            try:
                yield form.stored(line)
            except (ValueError, TypeError, KeyError, csv.Error) as error:
                raise _not_ours(path, number, str(error)) from error


def _not_ours(path: Path, number: int, problem: str) -> ValueError:
    return ValueError(
        f"{path}:{number}: this line was not written by this run in this format ({problem}), so --resume cannot "
        "continue the file; choose another --output, or remove the file."
    )


def _csv_line(values: list[Any]) -> bytes:
    text = io.StringIO()
    cells = [_one_line(value) if isinstance(value, str) else value for value in values]
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8")


def _one_line(text: str) -> str:
    """The text without line breaks, which would hide where a record ends, and without what UTF-8 cannot encode."""
    return " ".join(text.splitlines()).encode("utf-8", errors="backslashreplace").decode("utf-8")


def take_stored(
    documents: Iterator[InputDocument], stored: Iterable[StoredPrediction], form: LineFormat
) -> Iterator[tuple[InputDocument, tuple[Prediction, ...]]]:
    """Take the documents that are `stored`, whose ids must be the same, and leave the others in `documents`."""
    for earlier in stored:
        document = next(documents, None)
        if document is None:
            raise ValueError(
                f"The output has more documents than the input, from {earlier.id!r} on. Give the same input to "
                "--resume, or choose another --output."
            )
        if form.written_id(document.id) != earlier.id:
            raise ValueError(
                f"The output belongs to another input: it has the document {earlier.id!r} where the input has "
                f"{document.id!r}. Give the same input to --resume, or choose another --output."
            )
        yield document, earlier.predictions


_START_AFRESH = "choose another --output, or remove the file"


@dataclass(frozen=True)
class Origin:
    """What decides the lines of an output, apart from its input; `run` is the name of the directory, for people."""

    run: str
    fingerprint: str
    long: str
    format: str
    text_column: str
    id_column: str | None

    def write(self, output: Path) -> None:
        write_json(_beside(output), asdict(self))

    def check(self, output: Path) -> None:
        """Raise unless the output was started with this origin."""
        try:
            earlier = Origin(**json.loads(_beside(output).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise ValueError(
                f"{output}: --resume cannot continue, because {_beside(output).name}, which says what made the file, "
                f"is missing or damaged; {_START_AFRESH}."
            ) from error
        if changed := self._changes(earlier):
            raise ValueError(
                f"{output}: --resume cannot continue, because the file was started with other options: "
                f"{'; '.join(changed)}. Give the same run and options, {_START_AFRESH}."
            )

    def _changes(self, earlier: Origin) -> list[str]:
        changes = []
        if earlier.fingerprint != self.fingerprint:
            same = "which has changed since" if earlier.run == self.run else f"now {self.run}"
            changes.append(f"the run was {earlier.run}, {same}")
        for name in ("long", "format", "text_column", "id_column"):
            before, now = getattr(earlier, name), getattr(self, name)
            if before != now:
                option = "--" + name.replace("_", "-")
                changes.append(f"{option} was {before or 'not given'}, now {now or 'not given'}")
        return changes


def _beside(output: Path) -> Path:
    return output.with_name(f"{output.name}.origin.json")

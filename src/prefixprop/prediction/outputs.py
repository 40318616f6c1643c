"""Predictions as lines of a growing file, which a later call can continue after a kill.

JSON lines have the fields of a `Prediction` behind the `id`; CSV has them as columns, with one `probability of NAME`
per label. A small file beside the output says what made it, so that nothing else continues it.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import write_json
from prefixprop.choices import PREDICTION_FORMATS
from prefixprop.prediction.inputs import InputDocument
from prefixprop.prediction.predictor import Prediction

_PROBABILITY = "probability of "


@dataclass(frozen=True)
class StoredPrediction:
    """A line of an output file."""

    id: str
    prediction: Prediction


class LineFormat(ABC):
    """How predictions become lines, and lines become predictions again."""

    def __init__(self, label_names: tuple[str, ...]) -> None:
        self.label_names = label_names

    @abstractmethod
    def header(self) -> bytes:
        """The line before the predictions; empty if there is none."""

    @property
    @abstractmethod
    def opening(self) -> bytes:
        """How every file begins."""

    @abstractmethod
    def line(self, name: str, prediction: Prediction) -> bytes:
        """The line of one document, its end included."""

    def written_id(self, name: str) -> str:
        """The id as a file of this format has it."""
        return name

    @abstractmethod
    def fields(self, line: bytes) -> dict[str, Any]:
        """The fields of a line that `line` wrote; anything else raises `ValueError`."""

    def stored(self, line: bytes) -> StoredPrediction:
        """A line as a prediction of this run's labels; anything else raises `ValueError`."""
        fields = self.fields(line)
        if tuple(fields["probabilities"]) != self.label_names:
            raise ValueError(f"its labels are {', '.join(fields['probabilities'])}")
        return StoredPrediction(fields.pop("id"), Prediction(**fields))


class JsonLines(LineFormat):
    @property
    def opening(self) -> bytes:
        return b'{"id": "'

    def header(self) -> bytes:
        return b""

    def line(self, name: str, prediction: Prediction) -> bytes:
        text = json.dumps({"id": name, **vars(prediction)}, ensure_ascii=False, allow_nan=False)
        # Half of a surrogate pair has no UTF-8 form; its escape is the same character to JSON.
        return text.encode("utf-8", errors="backslashreplace") + b"\n"

    def fields(self, line: bytes) -> dict[str, Any]:
        record = json.loads(line)
        expected = {"id", *Prediction.__dataclass_fields__}
        if not isinstance(record, dict) or record.keys() != expected or not isinstance(record["probabilities"], dict):
            raise ValueError("it is not a prediction")
        return record


class CommaSeparated(LineFormat):
    @property
    def opening(self) -> bytes:
        return self.header()

    def header(self) -> bytes:
        probabilities = [_PROBABILITY + name for name in self.label_names]
        return _csv_line(["id", "label", "confidence", "tokens", "truncated", "chunks", *probabilities])

    def line(self, name: str, prediction: Prediction) -> bytes:
        numbers = [prediction.confidence, prediction.tokens, str(prediction.truncated).lower(), prediction.chunks]
        return _csv_line([name, prediction.label, *numbers, *prediction.probabilities.values()])

    def written_id(self, name: str) -> str:
        return _one_line(name)

    def fields(self, line: bytes) -> dict[str, Any]:
        (values,) = csv.reader([line.decode("utf-8")], strict=True)
        if len(values) != 6 + len(self.label_names):
            raise ValueError("it is not a prediction")
        name, label, confidence, tokens, truncated, chunks, *probabilities = values
        by_name = zip(self.label_names, map(float, probabilities), strict=True)
        return {
            "id": name,
            "label": label,
            "confidence": float(confidence),
            "probabilities": dict(by_name),
            "tokens": int(tokens),
            "truncated": truncated == "true",
            "chunks": int(chunks),
        }


def line_format(name: str, label_names: tuple[str, ...]) -> LineFormat:
    """The format of that name, for predictions of these labels."""
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
) -> Iterator[tuple[InputDocument, Prediction]]:
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
        yield document, earlier.prediction


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
                f"is missing or damaged (version 0.1 did not write it); {_START_AFRESH}."
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

"""Predictions on disk: one JSON object per line and document, enough to compute every measure again.

    {"id": "7", "label": "art", "predicted": "art", "classes": ["art", "law"], "logits": [2.2, 0.0]}
    {"id": "8", "label": null, "predicted": "law", "logits": [-0.5, 1.25]}

The first line names the classes of all lines; questions have `candidates` of their own instead, on every line. The
label is null where it is not known, and a logit is null where it is minus infinity. Probabilities are the softmax of
the logits. Numbers are written so that reading gives the very same floats. A file may be gzipped.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prefixprop.atomic_files import write_text
from prefixprop.data.rows import iterate_json_lines
from prefixprop.evaluate.prediction_set import PredictionSet


def write_predictions(path: str | Path, predictions: PredictionSet) -> None:
    """Write the predictions to `path`, a `.jsonl` or `.jsonl.gz` file, wholly or not at all."""
    if not Path(path).name.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(
            f"{path}: predictions are written as JSON lines; choose a name that ends in .jsonl or .jsonl.gz."
        )
    lines = []
    for row, winner in enumerate(predictions.logits.argmax(axis=1)):
        names, label = predictions.class_names(row), predictions.labels[row]
        record: dict[str, Any] = {
            "id": predictions.ids[row],
            "label": None if label is None else names[label],
            "predicted": names[int(winner)],
        }
        if predictions.candidates is not None:
            record["candidates"] = list(names)
        elif row == 0:
            record["classes"] = list(names)
        logits = predictions.logits[row, : len(names)].tolist()
        record["logits"] = [None if logit == -math.inf else logit for logit in logits]
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(path, "".join(lines))


def stored_predictions(path: str | Path) -> Path | None:
    """The file of this name, or else its gzipped form, `.gz`; None if neither exists."""
    plain = Path(path)
    return next((file for file in (plain, plain.with_name(f"{plain.name}.gz")) if file.is_file()), None)


def read_predictions(path: str | Path) -> PredictionSet:
    """Read what `write_predictions` wrote; anything else raises a `ValueError` beginning with `file:line`.

    If `path` does not exist, its gzipped form is read, see `stored_predictions`.
    """
    path = stored_predictions(path) or path
    lines: list[_Line] = []
    locations: dict[str, str] = {}
    for number, record in iterate_json_lines(Path(path)):
        line = _Line.parsed(record, f"{path}:{number}", lines[0] if lines else None)
        if line.id in locations:
            raise ValueError(f"{line.location}: the id {line.id!r} is already that of {locations[line.id]}.")
        locations[line.id] = line.location
        lines.append(line)
    if not lines:
        raise ValueError(f"{path}:1: there are no predictions in the file.")
    ids, labels = tuple(line.id for line in lines), tuple(line.label for line in lines)
    logits = [line.logits for line in lines]
    if lines[0].is_question:
        return PredictionSet.of_candidates(ids, labels, logits, [line.names for line in lines])
    return PredictionSet(ids, labels, np.array(logits), label_names=lines[0].names)


@dataclass(frozen=True)
class _Line:
    """One line of the file, checked."""

    location: str
    id: str
    label: int | None
    names: tuple[str, ...]
    logits: tuple[float, ...]
    is_question: bool

    @classmethod
    def parsed(cls, record: dict[str, Any], location: str, first: _Line | None) -> _Line:
        """Check a line; the `first` line of the file names the classes, unless they are candidates."""
        for field in ("id", "label", "logits"):
            if field not in record:
                raise ValueError(f"{location}: the field {field!r} is missing; there are {_listed(tuple(record))}.")
        if not isinstance(record["id"], str):
            raise ValueError(f"{location}: the id must be a string, got {record['id']!r}.")
        is_question = "candidates" in record
        if first is not None and is_question != first.is_question:
            raise ValueError(f"{location}: lines with and without candidates are mixed; see {first.location}.")
        names = _names(record, location, first)
        logits = _logits(record["logits"], location)
        if len(names) != len(logits):
            raise ValueError(f"{location}: {len(names)} classes have {len(logits)} logits.")
        label = record["label"]
        if label is not None and label not in names:
            raise ValueError(f"{location}: label is {label!r}, but must be one of {_listed(names)}.")
        return cls(location, record["id"], None if label is None else names.index(label), names, logits, is_question)


def _names(record: dict[str, Any], location: str, first: _Line | None) -> tuple[str, ...]:
    field = next((name for name in ("candidates", "classes") if name in record), None)
    if field is None:
        if first is None:
            raise ValueError(f"{location}: the field 'classes' is missing; the first line names the classes.")
        return first.names
    values, fewest = record[field], 1 if field == "candidates" else 2
    if not isinstance(values, list) or len(values) < fewest or not all(isinstance(name, str) for name in values):
        at_least = "one string" if fewest == 1 else f"{fewest} strings"
        raise ValueError(f"{location}: {field} must be a list of at least {at_least}, got {values!r}.")
    names = tuple(values)
    if field != "candidates" and len(set(names)) < len(names):
        raise ValueError(f"{location}: the classes must differ, got {_listed(names)}.")
    if field != "candidates" and first is not None and names != first.names:
        raise ValueError(f"{location}: the classes are {_listed(names)}, not those of {first.location}.")
    return names


def _logits(values: Any, location: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not any(value is not None for value in values):
        raise ValueError(f"{location}: logits must be a list of numbers, null for minus infinity, got {values!r}.")
    return tuple(-math.inf if value is None else _number(value, location) for value in values)


def _number(value: Any, location: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{location}: logits must be finite numbers, got {value!r}.")


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"

"""Predictions on disk: one JSON object per line and document, enough to compute every measure again.

    {"id": "7", "label": "art", "predicted": "art", "probabilities": {"art": 0.9, "law": 0.1}, "logits": [2.2, 0.0]}
    {"id": "q", "label": null, "predicted": "Oslo", "candidates": ["Oslo", "Rome"], "probabilities": [0.9, 0.1], …}

The first form is classification, whose classes are the same on every line; the second is a question, whose classes
are its candidates. The label is null where it is not known, and a logit is null where it is minus infinity. Numbers
are written so that reading gives the very same floats. A file may be gzipped.

The compact form, which archives have, is without probabilities, which are the softmax of the logits, and has rounded
logits. Its first line names the classes of all, except for questions, whose candidates stay:

    {"id":"7","label":"art","predicted":"art","classes":["art","law"],"logits":[2.197,0.0]}
    {"id":"8","label":"law","predicted":"art","logits":[1.25,0.5]}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prefixprop.atomic_files import write_text
from prefixprop.evaluation.prediction_set import PredictionSet
from prefixprop.evaluation.predictions import PROBABILITY_TOLERANCE, softmax
from prefixprop.tasks.json_lines import iterate_json_lines


def write_predictions(path: str | Path, predictions: PredictionSet) -> None:
    """Write the predictions to `path`, a `.jsonl` or `.jsonl.gz` file, wholly or not at all."""
    records = []
    for row, probabilities in enumerate(predictions.probabilities):
        names = predictions.class_names(row)
        kept = probabilities[: len(names)].tolist()
        named: dict[str, Any] = {"probabilities": dict(zip(names, kept, strict=True))}
        if predictions.candidates is not None:
            named = {"candidates": list(names), "probabilities": kept}
        records.append(_record(predictions, row, int(probabilities.argmax()), named))
    _write(path, records, (", ", ": "))


def write_compact_predictions(path: str | Path, predictions: PredictionSet, decimals: int) -> None:
    """Write the compact form, with logits of so many decimals; rounding does not change what is predicted."""
    rounded = _rounded(predictions, decimals)
    records = []
    for row, winner in enumerate(rounded.probabilities.argmax(axis=1)):
        field = "classes" if rounded.candidates is None else "candidates"
        is_told = row == 0 or rounded.candidates is not None
        named = {field: list(rounded.class_names(row))} if is_told else {}
        records.append(_record(rounded, row, int(winner), named))
    _write(path, records, (",", ":"))


def stored_predictions(path: str | Path) -> Path | None:
    """The file of this name, or where there is none its gzipped form, `.gz`, as in archives; None without both."""
    plain = Path(path)
    return next((file for file in (plain, plain.with_name(f"{plain.name}.gz")) if file.is_file()), None)


def read_predictions(path: str | Path) -> PredictionSet:
    """Read what was written here, in either form; anything else raises a `ValueError` beginning with `file:line`.

    Where `path` is not there, its gzipped form is read, see `stored_predictions`.
    """
    path = stored_predictions(path) or path
    lines: list[_Line] = []
    classes: Any = None
    for number, record in iterate_json_lines(Path(path)):
        classes = classes if lines else record.get("classes")
        lines.append(_Line.parsed(record, f"{path}:{number}", classes))
    if not lines:
        raise ValueError(f"{path}:1: there are no predictions in the file.")
    first_place: dict[str, str] = {}
    for line in lines:
        if line.id in first_place:
            raise ValueError(f"{line.place}: the id {line.id!r} is already that of {first_place[line.id]}.")
        first_place[line.id] = line.place
        if line.is_question != lines[0].is_question:
            raise ValueError(f"{line.place}: lines with and without candidates are mixed; see {lines[0].place}.")
        if not line.is_question and line.names != lines[0].names:
            raise ValueError(f"{line.place}: the classes are {_listed(line.names)}, not those of {lines[0].place}.")
    ids, labels = tuple(line.id for line in lines), tuple(line.label for line in lines)
    logits = [line.logits for line in lines]
    if lines[0].is_question:
        return PredictionSet.of_candidates(ids, labels, logits, [line.names for line in lines])
    return PredictionSet(ids, labels, np.array(logits), label_names=lines[0].names)


def _rounded(predictions: PredictionSet, decimals: int) -> PredictionSet:
    """The predictions with rounded logits; a document of which another class would then win keeps its own."""
    rounded = replace(predictions, logits=predictions.logits.round(decimals) + 0.0)  # no -0.0
    changed = rounded.probabilities.argmax(axis=1) != predictions.probabilities.argmax(axis=1)
    return replace(rounded, logits=np.where(changed[:, None], predictions.logits, rounded.logits))


def _record(predictions: PredictionSet, row: int, winner: int, named: dict[str, Any]) -> dict[str, Any]:
    """A line of the file; `named` has the fields that name the classes."""
    names, label = predictions.class_names(row), predictions.labels[row]
    logits = predictions.logits[row, : len(names)].tolist()
    return {
        "id": predictions.ids[row],
        "label": None if label is None else names[label],
        "predicted": names[winner],
        **named,
        "logits": [None if logit == -math.inf else logit for logit in logits],
    }


def _write(path: str | Path, records: list[dict[str, Any]], separators: tuple[str, str]) -> None:
    if not Path(path).name.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(
            f"{path}: predictions are written as JSON lines; choose a name that ends in .jsonl or .jsonl.gz."
        )
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False, separators=separators) for record in records]
    write_text(path, "".join(f"{line}\n" for line in lines))


@dataclass(frozen=True)
class _Line:
    """One line of the file, checked on its own."""

    place: str
    id: str
    label: int | None
    names: tuple[str, ...]
    logits: tuple[float, ...]
    is_question: bool

    @classmethod
    def parsed(cls, record: dict[str, Any], place: str, classes: Any) -> _Line:
        """Check a line; `classes` are those that the first line names, in the compact form."""
        is_question = "candidates" in record
        names_classes = () if is_question or classes is not None else ("probabilities",)
        for field in ("id", "label", "predicted", *names_classes, "logits"):
            if field not in record:
                raise ValueError(f"{place}: the field {field!r} is missing; there are {_listed(tuple(record))}.")
        if not isinstance(record["id"], str):
            raise ValueError(f"{place}: the id must be a string, got {record['id']!r}.")
        names = _class_names(record, classes, place)
        logits = _logits(record["logits"], place)
        probabilities = _probabilities(record, names, logits, place)
        predicted = probabilities[_place_of(record["predicted"], names, "predicted", place)]
        if predicted < max(probabilities) - PROBABILITY_TOLERANCE:
            raise ValueError(f"{place}: {record['predicted']!r} is not the most probable class, but predicted.")
        label = None if record["label"] is None else _place_of(record["label"], names, "label", place)
        return cls(place, record["id"], label, names, logits, is_question)


def _class_names(record: dict[str, Any], classes: Any, place: str) -> tuple[str, ...]:
    if "candidates" in record:
        return _names(record["candidates"], "candidates", 1, place)
    if "probabilities" not in record:
        names = _names(classes, "the classes that the first line names", 2, place)
        if len(set(names)) < len(names):
            raise ValueError(f"{place}: the classes that the first line names must differ, got {_listed(names)}.")
        return names
    by_name = record["probabilities"]
    if not isinstance(by_name, dict) or len(by_name) < 2:
        raise ValueError(
            f"{place}: probabilities must be an object with a number for each of at least two classes, or a list "
            'beside the field "candidates".'
        )
    return tuple(by_name)


def _names(values: Any, what: str, fewest: int, place: str) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) < fewest or not all(isinstance(name, str) for name in values):
        at_least = "one string" if fewest == 1 else f"{fewest} strings"
        raise ValueError(f"{place}: {what} must be a list of at least {at_least}, got {values!r}.")
    return tuple(values)


def _probabilities(
    record: dict[str, Any], names: tuple[str, ...], logits: tuple[float, ...], place: str
) -> list[float]:
    """Those of the line, checked to be the softmax of its logits; in the compact form that softmax."""
    if "probabilities" not in record:
        if len(names) != len(logits):
            raise ValueError(f"{place}: {len(names)} classes have {len(logits)} logits.")
        return _softmax(logits)
    stored = record["probabilities"]
    if isinstance(stored, dict) and "candidates" not in record:
        stored = list(stored.values())
    if not isinstance(stored, list):
        raise ValueError(f"{place}: probabilities must be a list, one number for each candidate, got {stored!r}.")
    told = [_number(value, "probabilities", place) for value in stored]
    if not len(names) == len(told) == len(logits):
        raise ValueError(f"{place}: {len(names)} classes have {len(told)} probabilities and {len(logits)} logits.")
    expected = _softmax(logits)
    if np.abs(np.subtract(expected, told)).max() > PROBABILITY_TOLERANCE:
        raise ValueError(f"{place}: the probabilities are not the softmax of the logits, {expected}.")
    return told


def _softmax(logits: tuple[float, ...]) -> list[float]:
    # The padding gives a lone candidate the second column that logits have everywhere.
    values: list[float] = softmax([[*logits, -math.inf]])[0, :-1].tolist()
    return values


def _logits(values: Any, place: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not any(value is not None for value in values):
        raise ValueError(f"{place}: logits must be a list of numbers, null for minus infinity, got {values!r}.")
    return tuple(-math.inf if value is None else _number(value, "logits", place) for value in values)


def _number(value: Any, field: str, place: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{place}: {field} must be finite numbers, got {value!r}.")


def _place_of(name: Any, names: tuple[str, ...], field: str, place: str) -> int:
    if name not in names:
        raise ValueError(f"{place}: {field} is {name!r}, but must be one of {_listed(names)}.")
    return names.index(name)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"

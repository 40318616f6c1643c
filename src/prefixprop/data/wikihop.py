"""WikiHop (QAngaroo v1.1, Welbl et al., 2018): questions over several documents with given candidate answers.

A folder holds `train` and `dev` as QAngaroo publishes them (`.json`, one array) or as JSON lines (`.jsonl`), either
one gzipped or not. QAngaroo keeps its test set secret, and the paper's table of data sets divides the 48,867
published questions 90/5/5: unless there is a `test` file, `dev` is halved.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixprop.data.documents import SPLIT_NAMES
from prefixprop.data.rows import read_json_lines

FILE_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
HALVING_SEED = 10


@dataclass(frozen=True)
class Question:
    """One question; `answer` is an index into `candidates`.

    `query` is a relation and its subject, as in "country_of_citizenship dan clark".
    """

    id: str
    query: str
    candidates: tuple[str, ...]
    supports: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class QuestionTask:
    """A data set of questions with candidates; a split may be empty."""

    name: str
    train: tuple[Question, ...]
    dev: tuple[Question, ...]
    test: tuple[Question, ...]

    def split(self, name: str) -> tuple[Question, ...]:
        """Return the split of that name: "train", "dev" or "test"."""
        if name not in SPLIT_NAMES:
            raise ValueError(f"Unknown split {name!r}; choose one of {', '.join(SPLIT_NAMES)}.")
        questions: tuple[Question, ...] = getattr(self, name)
        return questions


def load_wikihop(folder: str | Path | None = None) -> QuestionTask:
    """Read the files of `folder`: `train` and `dev`, and `test` where there is one; otherwise halve `dev`."""
    if folder is None:
        raise ValueError(
            "WikiHop is not on a hub: download QAngaroo (qangaroo.cs.ucl.ac.uk), unpack it, and give the folder with "
            "train.json and dev.json as the data directory (--data-dir)."
        )
    folder = Path(folder)
    files = {split: _find_file(folder, split) for split in SPLIT_NAMES}
    train, dev = (_read_split(folder, split, files[split]) for split in ("train", "dev"))
    if files["test"] is not None:
        return QuestionTask("wikihop", train, dev, read_questions(files["test"]))
    dev, test = _halves(dev)
    return QuestionTask("wikihop", train, dev, test)


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """Read one file of questions; a bad record raises a `ValueError` that names the file and the record."""
    path = Path(path)
    questions: list[Question] = []
    numbers: dict[str, int] = {}
    for number, record in enumerate(_read_records(path), start=1):
        question = _question(record, f"{path}, record {number}")
        if question.id in numbers:
            raise ValueError(
                f"{path}, record {number}: the id {question.id!r} is already that of record {numbers[question.id]}; "
                "give every question an id of its own."
            )
        numbers[question.id] = number
        questions.append(question)
    return tuple(questions)


def _find_file(folder: Path, split: str) -> Path | None:
    found = [folder / f"{split}{ending}" for ending in FILE_ENDINGS if (folder / f"{split}{ending}").is_file()]
    if len(found) > 1:
        raise ValueError(
            f"{folder} has several files of the split {split!r} ({', '.join(path.name for path in found)}); keep one."
        )
    return found[0] if found else None


def _read_split(folder: Path, split: str, path: Path | None) -> tuple[Question, ...]:
    if path is None:
        names = ", ".join(f"{split}{ending}" for ending in FILE_ENDINGS)
        raise FileNotFoundError(
            f"{folder} has no WikiHop questions for {split!r}; expected one of {names}. QAngaroo v1.1 has them in "
            "its folder wikihop: http://qangaroo.cs.ucl.ac.uk"
        )
    return read_questions(path)


def _read_records(path: Path) -> Sequence[Any]:
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return read_json_lines(path)
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.name.endswith(".gz") else data).decode("utf-8-sig")
        records = json.loads(text)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path}: the gzip data is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: the text is not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}:{error.lineno}: broken JSON: {error.msg} (column {error.colno}); the file must be one JSON "
            "array (JSON lines end in .jsonl)."
        ) from error
    if not isinstance(records, list):
        raise ValueError(f"{path}: expected a JSON array of questions, got {type(records).__name__}.")
    return records


def _question(record: Any, location: str) -> Question:
    if not isinstance(record, dict):
        raise ValueError(f"{location}: expected a JSON object, got {type(record).__name__}.")
    identifier, query, answer = (_text(record, name, location) for name in ("id", "query", "answer"))
    candidates, supports = (_texts(record, name, location) for name in ("candidates", "supports"))
    if not candidates:
        raise ValueError(f"{location}: question {identifier!r} has no candidates; give at least one.")
    if answer not in candidates:
        raise ValueError(f"{location}: the answer {answer!r} is not among the candidates {list(candidates)}.")
    return Question(identifier, query, candidates, supports, candidates.index(answer))


def _text(record: dict[str, Any], name: str, location: str) -> str:
    value = _field(record, name, location)
    if not isinstance(value, str):
        raise ValueError(f"{location}: the field {name!r} must be a string, got {type(value).__name__}.")
    return value


def _texts(record: dict[str, Any], name: str, location: str) -> tuple[str, ...]:
    value = _field(record, name, location)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{location}: the field {name!r} must be a list of strings.")
    return tuple(value)


def _field(record: dict[str, Any], name: str, location: str) -> Any:
    if name not in record:
        raise ValueError(
            f"{location}: the field {name!r} is missing; there are: {', '.join(sorted(record)) or 'none'}."
        )
    return record[name]


def _halves(questions: tuple[Question, ...]) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """Two random halves, always the same ones, each in the order of the file."""
    indices = list(range(len(questions)))
    random.Random(HALVING_SEED).shuffle(indices)
    middle = (len(indices) + 1) // 2
    first, second = sorted(indices[:middle]), sorted(indices[middle:])
    return tuple(questions[index] for index in first), tuple(questions[index] for index in second)

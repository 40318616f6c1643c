"""The files of an archive: one table of runs and one file of predictions, however many runs there are.

| file | what it is |
| --- | --- |
| `runs.jsonl.gz` | a line for each run: its name, settings, metrics, history, environment and labels |
| `predictions.npz` | logits in half precision, what documents they are of, and how long the train documents are |

Documents and lengths are stored once for all runs that share them; a line of the table says under which names.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.atomic_files import replacing_file, write_text
from prefixprop.data.rows import read_json_lines
from prefixprop.evaluate import PredictionSet
from prefixprop.runs.directory import ARCHIVE_TABLE

PREDICTIONS = "predictions.npz"
_FIELDS = ("name", "settings", "metrics", "environment", "history")
_LARGEST = float(np.finfo(np.float16).max)


def is_archive(folder: Path) -> bool:
    return (folder / ARCHIVE_TABLE).is_file()


@dataclass(frozen=True)
class ArchiveFiles:
    """The archive in a folder, or one that is to be written there: its lines by name, and its arrays."""

    folder: Path
    lines: dict[str, dict[str, Any]] = field(default_factory=dict)
    added: dict[str, NDArray[Any]] = field(default_factory=dict)  # arrays that are not in the file yet

    @classmethod
    def read(cls, folder: Path) -> ArchiveFiles:
        """The archive of this folder; an empty one if there is none yet."""
        if not is_archive(folder):
            return cls(folder)
        lines: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(read_json_lines(folder / ARCHIVE_TABLE), start=1):
            missing = [name for name in _FIELDS if name not in line]
            if missing:
                raise ValueError(
                    f"{folder / ARCHIVE_TABLE}:{number}: the field {missing[0]!r} is missing; archive again."
                )
            lines[line["name"]] = line
        return cls(folder, lines)

    def has_predictions(self, name: str, split: str) -> bool:
        return split in self.lines[name].get("predictions", {})

    def predictions(self, name: str, split: str) -> PredictionSet:
        """A run's predictions of a split, with logits in half precision."""
        about = json.loads(self._array(self.lines[name]["predictions"][split]).tobytes())
        logits = self._array(f"logits/{name}/{split}").astype(np.float64)
        named = {key: tuple(map(_frozen, about[key])) for key in ("label_names", "candidates") if key in about}
        return PredictionSet(tuple(about["ids"]), tuple(about["labels"]), logits, **named)

    def lengths(self, name: str) -> tuple[int, ...]:
        key = self.lines[name].get("lengths")
        return () if key is None else tuple(self._array(key).tolist())

    def add(self, line: dict[str, Any], predictions: dict[str, PredictionSet], lengths: Iterable[int]) -> None:
        """Put a run into the archive, replacing one of the same name; `write` makes it permanent."""
        name = line["name"]
        if predictions:
            line = line | {"predictions": {split: self._add_documents(one) for split, one in predictions.items()}}
        if counts := list(lengths):
            line = line | {"lengths": self._add("lengths", np.array(counts, dtype=np.int32))}
        for split, one in predictions.items():
            self.added[f"logits/{name}/{split}"] = half_precision(one.logits)
        self.lines[name] = line

    def write(self) -> None:
        """Write both files, each wholly or not at all; the predictions first, because the table refers to them."""
        arrays = {**{key: self._array(key) for key in self._stored_keys}, **self.added}
        self.folder.mkdir(parents=True, exist_ok=True)
        if arrays:
            with replacing_file(self.folder / PREDICTIONS) as temporary:
                np.savez_compressed(temporary, **{key: arrays[key] for key in sorted(arrays)})  # type: ignore[arg-type]
        table = [self.lines[name] for name in sorted(self.lines)]
        lines = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in table]
        write_text(self.folder / ARCHIVE_TABLE, "".join(lines))

    @cached_property
    def _stored_keys(self) -> tuple[str, ...]:
        return tuple(self._file.files) if self._file is not None else ()

    @cached_property
    def _file(self) -> Any:
        path = self.folder / PREDICTIONS
        if not path.is_file():
            return None
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: the predictions cannot be read ({error}); archive the runs again.") from error

    def _array(self, key: str) -> NDArray[Any]:
        if key in self.added:
            return self.added[key]
        try:
            found: NDArray[Any] = self._file[key]
        except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
            path = self.folder / PREDICTIONS
            raise ValueError(f"{path}: {key} is missing or damaged; archive the runs again.") from error
        return found

    def _add_documents(self, predictions: PredictionSet) -> str:
        about: dict[str, Any] = {"ids": predictions.ids, "labels": predictions.labels}
        if predictions.label_names is not None:
            about["label_names"] = predictions.label_names
        else:
            about["candidates"] = predictions.candidates
        content = json.dumps(about, separators=(",", ":")).encode()
        return self._add("documents", np.frombuffer(content, dtype=np.uint8))

    def _add(self, kind: str, array: NDArray[Any]) -> str:
        key = f"{kind}/{hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
        if key not in self._stored_keys:
            self.added[key] = array
        return key


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def half_precision(logits: NDArray[np.float64]) -> NDArray[np.float16]:
    """The logits in half precision, with the predicted class of every document as it was."""
    finite = np.where(np.isfinite(logits), logits.clip(-_LARGEST, _LARGEST), logits)
    half = finite.astype(np.float16)
    winners = logits.argmax(axis=1)
    for row in np.flatnonzero(half.argmax(axis=1) != winners):
        # Another class has come level by rounding; the smallest step puts the winner in front again.
        half[row, winners[row]] = np.nextafter(half[row].max(), np.float16(np.inf))
    return half

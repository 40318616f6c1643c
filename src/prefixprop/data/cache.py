"""The cache: documents and tokens that a run has read and encoded, kept on the disk for the next run.

An entry is a folder of plain arrays, found by a key that says what they were made from. It is written under a
temporary name and renamed, so it is either complete or absent. Processes that need the same entry wait for the first
of them. When all entries together exceed `LIMIT`, the least recently used ones are removed. Where the folder cannot
be written to, the arrays are made in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from prefixprop.atomic_files import is_temporary, replacing_folder

FOLDER, LIMIT = "PREFIXPROP_CACHE", "PREFIXPROP_CACHE_GB"  # environment variables
_FACTS = "facts.json"


class RaggedArray(Sequence[NDArray[Any]]):
    """Arrays of different lengths: `array[i]` is a copy of `values[offsets[i]:offsets[i + 1]]`.

    `values` and `offsets` may be memory maps of files larger than memory; `note` says why they are not.
    """

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64], note: str | None = None) -> None:
        self.values, self.offsets, self.note = values, offsets, note

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __getitem__(self, index: int) -> NDArray[Any]:  # type: ignore[override]
        place = range(len(self))[index]
        return np.array(self.values[self.offsets[place] : self.offsets[place + 1]])


@dataclass(frozen=True)
class Stored:
    """An entry: its arrays, as memory maps, and facts about them; `note` says why they are in memory, if they are."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]
    note: str | None = None


@dataclass
class Writer:
    """Arrays that grow at their ends, as files in `folder` or, if that is None, in memory."""

    folder: Path | None
    facts: dict[str, Any] = field(default_factory=dict)
    _types: dict[str, str] = field(default_factory=dict)
    _streams: dict[str, IO[bytes]] = field(default_factory=dict)

    def append(self, name: str, values: NDArray[Any]) -> None:
        if name not in self._streams:
            self._types[name] = values.dtype.name
            self._streams[name] = io.BytesIO() if self.folder is None else (self.folder / name).open("wb")
        self._streams[name].write(values.tobytes())


def cache_folder() -> Path:
    """Where the entries are: `PREFIXPROP_CACHE`, or `prefixprop` in the user's cache folder."""
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "prefixprop"


def stored(kind: str, key: str, fill: Callable[[Writer], None]) -> Stored:
    """The entry of this key; `fill` makes it unless it exists, and is called again if the disk fails meanwhile."""
    path = cache_folder() / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    try:
        if (found := _opened(path)) is not None:
            return found
        limit = _limit()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # documents may be private
        with FileLock(path.with_name(f".{path.name}.lock")):
            if (found := _opened(path)) is None:
                with replacing_folder(path) as folder:
                    _write(folder, fill)
                total = 0
                for entry in entries():
                    total += entry.size
                    if total > limit and entry.path != path:
                        shutil.rmtree(entry.path, ignore_errors=True)
                found = _opened(path)
        if found is not None:
            return found
        problem = "it was cleared"
    except (OSError, NotImplementedError) as error:  # the latter on file systems without locks
        number = getattr(error, "errno", None)
        problem = str(error) if number is None else os.strerror(number)
    note = (
        f"the cache folder {path.parent} cannot be used ({problem}), so documents are read and encoded in every run"
    )
    return in_memory(fill, note)


def in_memory(fill: Callable[[Writer], None], note: str | None = None) -> Stored:
    """What `fill` makes, in memory."""
    writer = Writer(None)
    fill(writer)
    arrays = {
        name: np.frombuffer(stream.getbuffer(), dtype=writer._types[name])  # type: ignore[attr-defined]
        for name, stream in writer._streams.items()
    }
    return Stored(arrays, writer.facts, note)


def _write(folder: Path, fill: Callable[[Writer], None]) -> None:
    writer = Writer(folder)
    try:
        fill(writer)
    finally:
        for stream in writer._streams.values():
            stream.close()
    arrays = {name: [kind, (folder / name).stat().st_size] for name, kind in writer._types.items()}
    (folder / _FACTS).write_text(json.dumps({"arrays": arrays, "facts": writer.facts}), encoding="utf-8")


def _opened(path: Path) -> Stored | None:
    """The entry, if it exists and is complete."""
    try:
        content = json.loads((path / _FACTS).read_text(encoding="utf-8"))
        arrays: dict[str, NDArray[Any]] = {}
        for name, (kind, size) in content["arrays"].items():
            if (path / name).stat().st_size != size:
                return None
            # An empty file cannot be mapped.
            arrays[name] = np.memmap(path / name, dtype=kind, mode="r") if size else np.zeros(0, dtype=kind)
    except (FileNotFoundError, ValueError, LookupError):  # also if another process has just removed it
        return None
    with contextlib.suppress(OSError):
        os.utime(path / _FACTS)  # when it was used
    return Stored(arrays, content["facts"])


@dataclass(frozen=True)
class Entry:
    """An entry on the disk: its folder, its size in bytes, and when it was used."""

    path: Path
    size: int
    used: float


def entries() -> list[Entry]:
    """All entries, the most recently used first."""
    found = []
    for path in _folders():
        with contextlib.suppress(OSError):  # another process may remove it
            files = [file.stat() for file in path.iterdir()]
            used = max((file.st_mtime for file in files), default=0.0)
            found.append(Entry(path, sum(file.st_size for file in files), used))
    return sorted(found, key=lambda entry: entry.used, reverse=True)


def clear() -> None:
    """Remove all entries, and what killed processes left behind."""
    for path in _folders():
        shutil.rmtree(path, ignore_errors=True)
    for lock in cache_folder().glob(".*.lock"):
        lock.unlink(missing_ok=True)


def _folders() -> Iterator[Path]:
    # The folder may hold other things too.
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(cache_folder().iterdir()):
            if is_temporary(path.name) or (path / _FACTS).is_file():
                yield path


def _limit() -> float:
    gigabytes = os.environ.get(LIMIT, "50")
    try:
        return float(gigabytes) * 1e9
    except ValueError:
        raise ValueError(f"{LIMIT}={gigabytes}: the size of the cache must be a number of gigabytes.") from None

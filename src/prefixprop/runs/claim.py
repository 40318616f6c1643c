"""Who trains in a run directory: one process at a time, on whatever machine.

On one machine the system's file lock decides: it ends with its process, however that ends. Machines that share a file
system may not see each other's locks, and a lock may outlive a machine that is gone. So the holder also counts up in
the lock file, every few seconds, and a holder on another machine that has stopped counting is taken for dead; no
clocks are compared. Should it only have stood still, it finds out before its next checkpoint, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from prefixprop.training.errors import TrainingError

LOCK = ".prefixprop-lock"
BEAT_SECONDS = 5.0
# Six beats: a busy file server delays some, and a few lost seconds cost less than two processes in one folder.
SILENT_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_LONGEST = 4096


class FolderInUse(ValueError):
    """A run directory in which another process is training."""


class _Lock(Enum):
    TAKEN = "taken"
    REFUSED = "refused"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class _Holder:
    """What a lock file says; all of it is None where nothing can be read from it."""

    token: str | None = None
    machine: str | None = None
    host: str | None = None
    process: int | None = None

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


class Claim:
    """The right to write to a run directory, for as long as `check` does not raise."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._ended = threading.Event()
        os.ftruncate(descriptor, 0)
        self._write()
        self._thread = threading.Thread(target=self._go_on_counting, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if another process has taken this one for dead and its place."""
        if self._is_lost():
            raise TrainingError(
                f"Another process has taken over {self._path.parent}, because this one stood still for more than "
                f"{SILENT_SECONDS:g} seconds; it ends here and leaves the run to the other."
            )

    def release(self) -> None:
        self._ended.set()
        self._thread.join()
        if not self._is_lost():
            # An empty file is nobody's, should the system not remove one that is open.
            os.ftruncate(self._descriptor, 0)
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _is_lost(self) -> bool:
        try:
            return _holder(_read(self._path)).token != self._token
        except OSError:
            return False  # a file server that does not answer has told nothing

    def _go_on_counting(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self._is_lost():
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        self._beats += 1
        record = {
            "token": self._token,
            "machine": _machine(),
            "host": platform.node(),
            "process": os.getpid(),
            # Always as long, so that it is written over the last one and no reader finds half of it.
            "beats": f"{self._beats:012d}",
        }
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, json.dumps(record).encode())
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)  # to where other machines see it


@contextlib.contextmanager
def claim(folder: Path, tell: Callable[[str], None]) -> Iterator[Claim]:
    """Keep other processes from training in `folder`; `FolderInUse` if one does already.

    `tell` hears of it where the last holder, on another machine, has to be watched for signs of life.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    descriptor = _take(path, tell)
    try:
        held = Claim(path, descriptor)
        try:
            yield held
        finally:
            held.release()
    finally:
        os.close(descriptor)


def wait_until_free(folder: Path, seconds: float, tell: Callable[[str], None]) -> None:
    """Wait until nobody trains in `folder`, but not longer than `seconds` for one that is alive."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with claim(folder, tell):
                return
        except FolderInUse:
            if time.monotonic() > deadline:
                return
            time.sleep(_LOOK_SECONDS)


def _take(path: Path, tell: Callable[[str], None]) -> int:
    """The descriptor of the lock file, which is now this process's to write."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _may_take(path, descriptor, tell):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _may_take(path: Path, descriptor: int, tell: Callable[[str], None]) -> bool:
    """Whether this process holds the file now; False where it was replaced, so that another try is due."""
    lock = _lock(descriptor)
    content = _read(path)
    holder = _holder(content)
    is_elsewhere = holder.machine is not None and holder.machine != _machine()
    if lock is _Lock.REFUSED and not is_elsewhere:
        raise _in_use(path, holder)
    if is_elsewhere or (lock is _Lock.UNSUPPORTED and content):
        tell(f"{path.parent} was last claimed by {holder}; waiting up to {SILENT_SECONDS:g} s for a sign of life")
        if _is_changing(path, content):
            if not (now := _read(path)):  # its holder has just let go of it
                return False
            raise _in_use(path, _holder(now))
    if lock is _Lock.REFUSED:
        # The file server still keeps the lock of a machine that is gone; a new file has no lock on it.
        path.unlink(missing_ok=True)
        return False
    return _is_file_of(path, descriptor)


def _in_use(path: Path, holder: _Holder) -> FolderInUse:
    who = "" if holder.process is None else f" ({holder})"
    return FolderInUse(f"Another process is training in {path.parent}{who}; wait for it or choose another --run-dir.")


def _is_changing(path: Path, content: bytes) -> bool:
    deadline = time.monotonic() + SILENT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        if _read(path) != content:
            return True
    return False


def _is_file_of(path: Path, descriptor: int) -> bool:
    """Whether the locked file is still the one of this name, and not one that its last holder has just removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read(path: Path) -> bytes:
    """What the file says, empty where there is none; opening it makes network file systems look afresh."""
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST)
    except FileNotFoundError:
        return b""


def _holder(content: bytes) -> _Holder:
    try:
        record: Any = json.loads(content)
        return _Holder(record["token"], record["machine"], record["host"], record["process"])
    except (ValueError, KeyError, TypeError):
        return _Holder()


def _machine() -> str:
    """A name for the running system, within which file locks are sure to be seen: containers of one share them."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _lock(descriptor: int) -> _Lock:
    """Lock an open file, if nobody else has; Windows and some network file systems have no such locks."""
    try:
        import fcntl
    except ImportError:
        return _Lock.UNSUPPORTED
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _Lock.REFUSED
    except OSError:
        return _Lock.UNSUPPORTED
    return _Lock.TAKEN

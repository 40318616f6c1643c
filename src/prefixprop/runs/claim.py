"""One process at a time trains in a run directory.

The operating system holds the lock, so it ends with its process, even a killed one. Machines that share a file
system may not see each other's locks: in a sweep on several machines the sweep alone decides which machine computes
a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".prefixprop-lock"
_LOOK_SECONDS = 0.5


class FolderInUse(ValueError):
    """A run directory in which another process is training."""


@contextmanager
def claim(folder: Path, option: str = "--run-dir") -> Iterator[None]:
    """Keep other processes from training in `folder`; `FolderInUse` if one already does."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout:
        raise FolderInUse(
            f"Another process is training in {folder}; wait for it or choose another {option}."
        ) from None
    with held:
        yield


def wait_until_free(folder: Path, notify: Callable[[str], None]) -> None:
    """Wait until no process trains in `folder`, however long that takes; `notify` gets a note if that is not now."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        notify(f"Another process is training in {folder}; waiting for it.")
        lock.acquire(poll_interval=_LOOK_SECONDS)
    lock.release()

"""Files and folders that are either complete or absent.

Everything is first written under a temporary name in the folder of its target, forced to the disk, and then renamed
over the target in one step. So after a full disk, an error or a killed process, the old content is still there. Only
a killed process leaves its temporary files behind; `clear_leftovers` removes those.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

_TEMPORARY_PREFIX = ".prefixprop-tmp-"
_REPLACED_PREFIX = ".prefixprop-old-"
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file, and make its folder if needed; gzipped if its name ends in `.gz`."""
    # Half of a surrogate pair, which broken JSON input can hold, has no UTF-8 form. As a backslash escape it does not
    # stop the writing, and inside JSON that escape is the very same character again.
    content = text.encode("utf-8", errors="backslashreplace")
    if Path(path).suffix == ".gz":
        content = gzip.compress(content, mtime=0)  # the same bytes for the same content
    with replacing_file(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as indented JSON; what JSON cannot hold, such as NaN, raises an error before any writing."""
    write_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


@contextlib.contextmanager
def replacing_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path with the same ending to write to; it becomes `path` if the block raises no error."""
    target = Path(os.path.realpath(path))  # a link must still point to the file, not be replaced by it
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} is not a regular file, so it cannot be replaced by one; choose another path.")
    with _temporary_beside(target, path) as temporary:
        yield temporary
        _force_to_disk(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)


@contextlib.contextmanager
def replacing_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder to fill; it replaces `path` if the block raises no error.

    No system renames over a folder with files in it, so an old one is moved aside for an instant. A process killed in
    that instant leaves it aside, and `clear_leftovers` moves it back.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir():
        raise ValueError(f"{path} is a file, so it cannot be replaced by a folder; choose another path.")
    with _temporary_beside(target, path) as temporary:
        temporary.mkdir()
        yield temporary
        _force_tree_to_disk(temporary)
        _move_into_place(temporary, target)


def clear_leftovers(folder: str | Path) -> None:
    """Undo in `folder` and below what killed processes left; no other process may be writing there."""
    for leftover in sorted(Path(folder).rglob(_REPLACED_PREFIX + "*")):
        target = leftover.with_name(leftover.name.removeprefix(_REPLACED_PREFIX))
        if leftover.exists() and not target.exists():
            os.replace(leftover, target)
        else:
            _remove(leftover)
    for leftover in sorted(Path(folder).rglob(_TEMPORARY_PREFIX + "*")):
        _remove(leftover)


def is_temporary(name: str) -> bool:
    """Whether a file or folder of this name is unfinished or about to be removed: only its writer may use it."""
    return name.startswith((_TEMPORARY_PREFIX, _REPLACED_PREFIX))


@contextlib.contextmanager
def _temporary_beside(target: Path, path: str | Path) -> Iterator[Path]:
    """A name in the folder of `target`, which is gone in the end; errors of writing there name `path`."""
    # The ending stays, because matplotlib and others choose the format by it.
    temporary = target.with_name(f"{_TEMPORARY_PREFIX}{secrets.token_hex(6)}{target.suffix}")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        _force_names_to_disk(target.parent)
    except OSError as error:
        own = str(error.filename).startswith(str(temporary))
        if not own and error.errno not in _DISK_FULL:
            raise  # about another file, by the caller
        reason = f"cannot be written ({error.strerror}); what was there before is unchanged"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        _remove(temporary)


def _move_into_place(temporary: Path, target: Path) -> None:
    replaced = target.with_name(_REPLACED_PREFIX + target.name)
    if target.exists():
        _remove(replaced)
        os.replace(target, replaced)
    try:
        os.replace(temporary, target)
    except BaseException:
        if replaced.exists():
            os.replace(replaced, target)
        raise
    _remove(replaced)


def _force_tree_to_disk(folder: Path) -> None:
    for parent, _, names in os.walk(folder, topdown=False):
        for file in (Path(parent) / name for name in names):
            if not file.is_symlink():
                _force_to_disk(file)
        _force_names_to_disk(Path(parent))


def _force_to_disk(file: Path) -> None:
    # Windows forces only what is open for writing; elsewhere reading is enough, and read-only files occur.
    descriptor = os.open(file, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _force_names_to_disk(folder: Path) -> None:
    # Windows cannot open a folder and some network file systems cannot force one; the renaming itself has been done.
    with contextlib.suppress(OSError):
        _force_to_disk(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


# --- manifests: checksums of what belongs together in a folder, so that damaged and mixed-up parts are noticed ------

MANIFEST = "manifest.json"


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """The checksum of each file, by its name in the folder."""
    return {name: checksum(folder / name) for name in files}


def mismatch(folder: Path, files: Iterable[str], ignored: Collection[str] = (), **fingerprints: str) -> str | None:
    """The first difference between the folder and its manifest, None if there is none.

    `files` are those that the manifest should list, `ignored` the subfolders whose files do not matter, and
    `fingerprints` the other expected entries.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        listed = {name: value for name, value in manifest.items() if name.split("/")[0] not in ignored}
        found = checksums(folder, files) | fingerprints
        for name in sorted(listed.keys() | found.keys()):
            if name not in found:
                return f"{name} is missing"
            if name not in listed:
                return f"{name} is not in {MANIFEST}"
            if listed[name] != found[name]:
                return f"{name} is truncated or changed"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except OSError as error:
        return f"{Path(str(error.filename)).name} cannot be read ({error.strerror})"
    except (ValueError, AttributeError):  # broken JSON, or JSON of something else
        return f"{MANIFEST} is damaged"
    return None

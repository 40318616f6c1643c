"""Manifests: the checksums of what belongs together in a folder, so that damaged and mixed-up parts are noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

MANIFEST = "manifest.json"
_HASHED_AT_ONCE = 2**20


def checksums(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """The checksum of each file, by its name in the folder."""
    return {name: _checksum(folder / name) for name in files}


def mismatch(folder: Path, files: Iterable[str], **fingerprints: str) -> str | None:
    """The first difference between the folder and its manifest, None if there is none.

    `files` are those that the manifest should list, `fingerprints` its other expected entries.
    """
    try:
        listed = json.loads((folder / MANIFEST).read_bytes())
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


def _checksum(path: Path) -> str:
    """The checksum of a file, which may be too large to read at once."""
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASHED_AT_ONCE):
            checksum.update(block)
    return checksum.hexdigest()

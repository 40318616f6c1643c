"""Manifests: the checksums of what belongs together in a folder, so that damaged and mixed-up parts are noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path

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

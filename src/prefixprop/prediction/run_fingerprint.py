"""What tells the model of a run from every other, wherever its directory lies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from prefixprop.runs import files as run_files
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.methods import ADAPTER, HEAD, MODEL


def run_fingerprint(run_dir: Path) -> str:
    """The same for the same predictions: of the settings, labels, temperature, tokenizer and trained weights."""
    directory = RunDirectory(run_dir)
    folders = (directory.tokenizer, *(run_dir / name for name in (ADAPTER, MODEL, HEAD)))
    # A model card says nothing about the predictions, and people edit it.
    parts = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix != ".md"]
    digest = hashlib.sha256(repr(run_files.read_temperature(run_dir).value).encode())
    for path in (directory.config, directory.labels, *parts):
        if path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(run_dir).as_posix()}\n{content}\n".encode())
    return digest.hexdigest()

"""Folders with one table per split: `train.jsonl.gz`, `dev.parquet` and the like."""

from __future__ import annotations

import re
from pathlib import Path

from prefixprop.tasks.rows import ENDINGS

# Large tables are published in parts: train-00000-of-00015.parquet.
_PART = r"(?:-(?P<part>\d+)-of-(?P<parts>\d+))?"
_ENDING = "|".join(re.escape(ending) for ending in ENDINGS)


def check_folder(folder: Path) -> None:
    """Complain if the folder of a data set is not there."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder (data directory).")


def find_split_files(folder: Path, *split_names: str) -> list[Path]:
    """The files of one split, which may go by several names ("dev", "validation"); an empty list if there are none.

    All of them must have the same name and ending but for the number of a part: which of `train.csv` and
    `train.jsonl` is meant, only the user can say.
    """
    names = "|".join(map(re.escape, split_names))
    pattern = re.compile(rf"(?P<name>{names}){_PART}(?P<ending>{_ENDING})")
    matches = [match for path in sorted(folder.iterdir()) if (match := pattern.fullmatch(path.name))]
    found = ", ".join(match[0] for match in matches)
    if len({(match["name"], match["ending"], match["parts"]) for match in matches}) > 1:
        raise ValueError(f"{folder}: several files could be {split_names[0]}: {found}; keep one of them.")
    parts = matches[0]["parts"] if matches else None
    if parts is not None and len(matches) != int(parts):
        raise ValueError(f"{folder}: {split_names[0]} has {int(parts)} parts, of which there are only {found}.")
    return [folder / match[0] for match in matches]

"""What a sweep noted beside its runs: which of them failed, and which only served to choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefixprop.runs.directory import RunDirectory

SUMMARY = "sweep.json"


def read_failures(folder: Path) -> dict[Path, str]:
    """The directories of the runs that failed in the last sweep of this folder, with what was said of each.

    Nothing where no sweep has ended here, or its notes are damaged: they only add reasons to what is left out anyway.
    A run that has come to its end since is no failure.
    """
    failed = _notes(folder).get("failed")
    if not isinstance(failed, dict):
        return {}
    places = {(folder / name).resolve(): " ".join(str(told).split()) for name, told in failed.items()}
    return {place: told for place, told in places.items() if not RunDirectory(place).is_finished()}


def runs_that_only_chose(folder: Path) -> frozenset[str]:
    """The names of the runs by which the last sweep of this folder chose, and which it did not choose.

    None of a cell that has not chosen yet. Other runs in the folder, such as those of an earlier sweep, are not among
    them, for nothing is known of them; and neither is any where no sweep has ended, or its notes are damaged.
    """
    cells = _notes(folder).get("cells")
    asked: set[str] = set()
    results: set[str] = set()
    for cell in cells if isinstance(cells, list) else ():
        runs, final = (_names(cell, field) for field in ("runs", "final_runs"))
        asked |= runs
        results |= final or runs
    return frozenset(asked - results)


def _names(cell: Any, field: str) -> set[str]:
    found = cell.get(field) if isinstance(cell, dict) else None
    return {name for name in found if isinstance(name, str)} if isinstance(found, (dict, list)) else set()


def _notes(folder: Path) -> dict[str, Any]:
    try:
        notes: Any = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}

"""A sweep's notes beside its runs: which of them failed, and which only served the search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefixprop.runs.directory import RunDirectory

SUMMARY = "sweep.json"


def read_failures(folder: Path) -> dict[Path, str]:
    """The directories of the runs that failed in the last sweep of this folder, with the reason for each.

    Empty if no sweep has ended here, or its notes are damaged: they only add reasons to what is left out anyway. A
    run that has finished since is not a failure.
    """
    failed = _notes(folder).get("failed")
    if not isinstance(failed, dict):
        return {}
    reasons = {(folder / name).resolve(): " ".join(str(reason).split()) for name, reason in failed.items()}
    return {path: reason for path, reason in reasons.items() if not RunDirectory(path).is_finished()}


def search_only_runs(folder: Path) -> frozenset[str]:
    """The names of the runs that only helped the last sweep of this folder to choose, and were not chosen.

    Empty if no sweep has ended, or its notes are damaged. A cell that has not chosen yet has no such runs, and other
    runs in the folder, such as those of an earlier sweep, are not among them.
    """
    cells = _notes(folder).get("cells")
    all_runs: set[str] = set()
    results: set[str] = set()
    for cell in cells if isinstance(cells, list) else ():
        runs, final = (_names(cell, field) for field in ("runs", "final_runs"))
        all_runs |= runs
        results |= final or runs
    return frozenset(all_runs - results)


def _names(cell: Any, field: str) -> set[str]:
    found = cell.get(field) if isinstance(cell, dict) else None
    return {name for name in found if isinstance(name, str)} if isinstance(found, (dict, list)) else set()


def _notes(folder: Path) -> dict[str, Any]:
    try:
        notes: Any = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}

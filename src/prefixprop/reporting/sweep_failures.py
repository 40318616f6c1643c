"""Which runs of a sweep failed, and why, as the sweep itself noted it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefixprop.experiments.sweep import SUMMARY
from prefixprop.training import RunDirectory


def read_failures(folder: Path) -> dict[Path, str]:
    """The directories of the runs that failed in the last sweep of this folder, with what was said of each.

    Nothing where no sweep has ended here, or its notes are damaged: they only add reasons to what is left out anyway.
    A run that has come to its end since is no failure.
    """
    path = folder / SUMMARY
    try:
        summary: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    failed = summary.get("failed") if isinstance(summary, dict) else None
    if not isinstance(failed, dict):
        return {}
    places = {(folder / name).resolve(): " ".join(str(told).split()) for name, told in failed.items()}
    return {place: told for place, told in places.items() if not RunDirectory(place).is_finished()}

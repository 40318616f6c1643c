"""Whether the runs of a table were made under the same circumstances: code, machine and versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from prefixprop.runs.run import Run

_SHORT_COMMIT = 7
_UNKNOWN = "unknown"


def differing_circumstances(runs: Sequence[Run]) -> str:
    """A line on what differs between the runs, and how many of them have which; empty where nothing does."""
    facts = [_facts(run) for run in runs]
    parts = []
    for name in dict.fromkeys(name for known in facts for name in known):
        counts = Counter(known.get(name, _UNKNOWN) for known in facts)
        if len(counts) > 1:
            counted = ", ".join(f"{value}: {count}" for value, count in counts.most_common())
            parts.append(f"{name} ({counted})")
    return f"Not all runs were made alike: {'; '.join(parts)}." if parts else ""


def _facts(run: Run) -> dict[str, str]:
    git, packages = (_dictionary(run.environment.get(name)) for name in ("git", "packages"))
    versions = {"Python": run.environment.get("python"), **packages}
    return {
        "commit": str(git.get("commit") or _UNKNOWN)[:_SHORT_COMMIT],
        "changed files": _changed(git),
        "device": run.device,
        **{name: str(version or _UNKNOWN) for name, version in versions.items()},
    }


def _changed(git: dict[str, Any]) -> str:
    """Whether files differed from the commit, and where that is known, a short name of the differences."""
    changed = git.get("changed")
    return _UNKNOWN if changed is None else str(git.get("difference") or "yes") if changed else "no"


def _dictionary(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

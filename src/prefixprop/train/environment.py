"""Under which circumstances a run was made: enough to make it again."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("prefixprop", "torch", "transformers", "peft", "accelerate", "numpy", "scikit-learn", "safetensors")

# Where the commit of the code stands if there is no git history to ask.
COMMIT_VARIABLE, COMMIT_FILE = "PREFIXPROP_COMMIT", Path("COMMIT")


def describe_environment(seed: int, device: torch.device, processes: int) -> dict[str, Any]:
    """Versions, machine, git commit of the working folder and command line."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "seed": seed,
        "git": _git(),
        "command": shlex.join(sys.argv),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """The commit of the working folder, whether files differ from it, and a short name of the differences.

    Without a repository, as in a copy of one, the commit is what `PREFIXPROP_COMMIT` or the file `COMMIT` says; None
    without these.
    """
    commit = _git_output("rev-parse", "HEAD")
    if commit is None:
        told = os.environ.get(COMMIT_VARIABLE, "").strip() or _told_by_file()
        return {"commit": told, "changed": None} if told else None
    changes = _git_output("diff", "--no-ext-diff", "HEAD")
    if not changes:
        return {"commit": commit, "changed": None if changes is None else False}
    return {"commit": commit, "changed": True, "difference": hashlib.sha256(changes.encode()).hexdigest()[:7]}


def _told_by_file() -> str | None:
    try:
        return COMMIT_FILE.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _git_output(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode("utf-8", "replace").strip()  # a changed file may be in any encoding
